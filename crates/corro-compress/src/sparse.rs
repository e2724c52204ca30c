//! A few values of many.
//!
//! The largest differ from rank to rank, so all get all of them (gather): (n - 1) k times 8 bytes to receive. Random places
//! that are the same for all can be summed: 2 k times 4 bytes.

use corro_core::compression::Method;
use corro_core::shape::share;
use corro_core::{Compression, Error, Result};

use crate::codec::add;
use crate::part::Part;
use crate::peers::Peers;
use crate::state::{State, filled, mixed};

/// Where the density of DGC begins.
const DENSEST: f64 = 0.25;
/// Bytes of a place and its value.
const PAIR: usize = 8;
/// Values that are looked at to guess how large the largest are.
const SAMPLE: usize = 4096;

/// Sums the largest values of each peer: top-k, DGC and EF21.
pub(crate) fn largest(peers: &mut impl Peers, compression: &Compression, parts: &mut [Part<'_>]) -> Result<usize> {
    let (n, me) = (peers.size(), peers.me());
    let counts: Vec<usize> =
        parts.iter().map(|part| count(density(compression, part.state), part.values.len())).collect();
    let mut own = Vec::with_capacity(counts.iter().sum::<usize>() * PAIR);
    for (part, count) in parts.iter_mut().zip(&counts) {
        gather_up(compression, part, n);
        send(compression, part, *count, &mut own);
    }
    let mut all = vec![0; own.len() * n];
    peers.gather(&own, &vec![own.len(); n], &mut all)?;
    for part in parts.iter_mut() {
        part.values.fill(0.0);
    }
    let mut rest = &all[..];
    for peer in 0..n {
        for (part, count) in parts.iter_mut().zip(&counts) {
            let (pairs, after) = rest.split_at(count * PAIR);
            rest = after;
            add_pairs(pairs, part.values).map_err(|place| {
                let (name, len) = (part.name, part.values.len());
                Error::Malformed(format!("peer {peer} has sent value {place} of the {len} of tensor {name}"))
            })?;
        }
    }
    if let Method::Ef21 { .. } = compression.method {
        for part in parts.iter_mut() {
            let common = filled(&mut part.state.common, part.values.len());
            add(common, part.values);
            part.values.copy_from_slice(common);
            // What is not a number would stay in the sum for ever. All see it, and begin anew.
            if common.iter().any(|value| !value.is_finite()) {
                part.state.forget_common();
            }
        }
    }
    debug_assert!(me < n);
    Ok(own.len() * (n - 1))
}

/// Puts into `values` that from which the largest are sent.
fn gather_up(compression: &Compression, part: &mut Part<'_>, peers: usize) {
    let len = part.values.len();
    match compression.method {
        Method::Ef21 { .. } => {
            for (value, known) in part.values.iter_mut().zip(filled(&mut part.state.mirror, len)) {
                *value -= *known;
            }
        }
        Method::Dgc { momentum, clip, .. } => {
            if clip.get() > 0.0 {
                let norm = part.values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
                let most = clip.get() / (peers as f64).sqrt();
                if norm > most {
                    let factor = (most / norm) as f32;
                    part.values.iter_mut().for_each(|value| *value *= factor);
                }
            }
            let momentum = momentum.get() as f32;
            filled(&mut part.state.residual, len);
            for (i, velocity) in filled(&mut part.state.velocity, len).iter_mut().enumerate() {
                *velocity = momentum * *velocity + part.values[i];
                part.state.residual[i] += *velocity;
            }
            part.values.copy_from_slice(&part.state.residual);
        }
        _ if compression.feedback => {
            let residual = filled(&mut part.state.residual, len);
            add(residual, part.values);
            part.values.copy_from_slice(residual);
        }
        _ => {}
    }
}

/// Writes the largest values with their places, and marks them as sent.
fn send(compression: &Compression, part: &mut Part<'_>, count: usize, out: &mut Vec<u8>) {
    for place in select(part.values, count) {
        let (at, value) = (place as usize, part.values[place as usize]);
        out.extend_from_slice(&place.to_le_bytes());
        out.extend_from_slice(&value.to_le_bytes());
        match compression.method {
            // What is not a number would stay one for ever: the others are told, and it is forgotten.
            Method::Ef21 { .. } => part.state.mirror[at] += if value.is_finite() { value } else { 0.0 },
            Method::Dgc { .. } => {
                part.state.residual[at] = 0.0;
                part.state.velocity[at] = 0.0;
            }
            _ if compression.feedback => part.state.residual[at] = 0.0,
            _ => {}
        }
    }
}

/// Adds values at their places; the place, if there is no such.
fn add_pairs(pairs: &[u8], values: &mut [f32]) -> std::result::Result<(), u32> {
    for pair in pairs.as_chunks::<PAIR>().0 {
        let [a, b, c, d, value @ ..] = *pair;
        let place = u32::from_le_bytes([a, b, c, d]);
        *values.get_mut(place as usize).ok_or(place)? += f32::from_le_bytes(value);
    }
    Ok(())
}

/// Sums values at random places, the same for all peers. Without feedback they stand for those beside them, too.
pub(crate) fn random(
    peers: &mut impl Peers,
    compression: &Compression,
    density: f64,
    parts: &mut [Part<'_>],
) -> Result<usize> {
    let mut values = Vec::new();
    let mut places = Vec::with_capacity(parts.len());
    for part in parts.iter_mut() {
        let chosen = random_places(part.state, part.name, part.values.len(), count(density, part.values.len()));
        if compression.feedback {
            let residual = filled(&mut part.state.residual, part.values.len());
            add(residual, part.values);
            if residual.iter().all(|value| value.is_finite()) {
                values.extend(chosen.iter().map(|place| std::mem::take(&mut residual[*place])));
            } else {
                // It may be at any place, and must not stay unseen.
                residual.fill(0.0);
                values.extend(chosen.iter().map(|_| f32::NAN));
            }
        } else {
            let weight = part.values.len() as f32 / chosen.len().max(1) as f32;
            values.extend(chosen.iter().map(|place| part.values[*place] * weight));
        }
        places.push(chosen);
    }
    peers.sum(&mut values)?;
    let mut sums = values.iter();
    for (part, chosen) in parts.iter_mut().zip(places) {
        part.values.fill(0.0);
        for (place, sum) in chosen.into_iter().zip(&mut sums) {
            part.values[place] = *sum;
        }
    }
    let n = peers.size();
    Ok(values.len() * size_of::<f32>() * 2 * (n - 1) / n)
}

/// One place out of each of `count` equal stretches.
fn random_places(state: &State, name: &str, len: usize, count: usize) -> Vec<usize> {
    let key = state.key(name, None);
    let place = |i: usize| {
        let stretch = share(len, count, i);
        stretch.start + (mixed(key ^ i as u64) % stretch.len().max(1) as u64) as usize
    };
    (0..count).map(place).collect()
}

/// How many values are sent.
fn count(density: f64, len: usize) -> usize {
    ((density * len as f64).ceil() as usize).clamp(1, len.max(1)).min(len)
}

/// Which part of the values is sent in this step.
fn density(compression: &Compression, state: &State) -> f64 {
    match compression.method {
        Method::Dgc { density, warmup, .. } if state.steps < u64::from(warmup) => {
            let (from, to) = (DENSEST.max(density.get()), density.get());
            from * (to / from).powf(state.steps as f64 / f64::from(warmup))
        }
        Method::TopK { density } | Method::Dgc { density, .. } | Method::Ef21 { density } => density.get(),
        _ => 1.0,
    }
}

/// The places of the `count` largest values, ascending. A NaN is the largest of all, so that it is not hidden.
fn select(values: &[f32], count: usize) -> Vec<u32> {
    let magnitude = |place: u32| values[place as usize].to_bits() & 0x7fff_ffff;
    let mut places: Vec<u32> = Vec::new();
    if count < values.len() / 4 && values.len() > 4 * SAMPLE {
        let threshold = guess(values, count);
        places.extend((0..values.len() as u32).filter(|place| magnitude(*place) >= threshold));
    }
    if places.len() < count {
        places = (0..values.len() as u32).collect();
    }
    if count < places.len() {
        places.select_nth_unstable_by_key(count, |place| std::cmp::Reverse(magnitude(*place)));
        places.truncate(count);
    }
    places.sort_unstable();
    places
}

/// A magnitude which somewhat more than `count` values reach, by a sample.
fn guess(values: &[f32], count: usize) -> u32 {
    let step = values.len() / SAMPLE;
    let mut sample: Vec<u32> = values.iter().step_by(step).map(|value| value.to_bits() & 0x7fff_ffff).collect();
    let wanted = count * sample.len() / values.len();
    // A sample is off by about the root of what it counts.
    let at = (wanted + 3 * (wanted as f64).sqrt() as usize + 4).min(sample.len() - 1);
    *sample.select_nth_unstable_by_key(at, |magnitude| std::cmp::Reverse(*magnitude)).1
}

#[cfg(test)]
mod tests {
    use corro_testing::Random;

    use super::*;

    #[test]
    fn the_largest_are_found_whatever_the_values() {
        let mut random = Random::new(1);
        for len in [1, 10, 1000, 40_000] {
            for even in [true, false] {
                let values: Vec<f32> =
                    (0..len).map(|_| if even { 1.0 } else { (random.unit() - 0.5).powi(5) as f32 }).collect();
                for count in [1, len / 100 + 1, len / 2 + 1, len] {
                    let found = select(&values, count);
                    assert_eq!(found.len(), count);
                    assert!(found.is_sorted_by(|a, b| a < b), "ascending, none twice");
                    let mut sorted: Vec<f32> = values.iter().map(|v| v.abs()).collect();
                    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
                    assert!(found.iter().all(|place| values[*place as usize].abs() >= sorted[count - 1]));
                }
            }
        }
        assert_eq!(select(&[1.0, f32::NAN, 9.0, f32::NEG_INFINITY], 2), [1, 3]);
    }

    #[test]
    fn places_of_others_are_checked() {
        let pair = |place: u32| [place.to_le_bytes(), 2f32.to_le_bytes()].concat();
        let mut values = [1.0; 3];
        assert_eq!(add_pairs(&pair(2), &mut values), Ok(()));
        assert_eq!(values, [1.0, 1.0, 3.0]);
        assert_eq!(add_pairs(&pair(3), &mut values), Err(3));
    }
}
