//! Which server has which part: parts of a few megabytes, the largest first, each to the server that is furthest below its
//! share. Pure, and the same in every worker that names the same keys in the same order.
//!
//! With n worker hosts and k spare hosts, all with the same network, a job is fastest if each spare host holds
//! 2(n-1) / (n^2 + kn - 2k) of the model and each worker host (n-k) / (n^2 + kn - 2k); then an exchange of M bytes takes
//! 2n(n-1) / (n^2 + kn - 2k) · M / bandwidth, against 2(n-1)/n for a ring. `docs/parameter-server.md` has the table.

use crate::protocol::{MAX_PART_BYTES, ServerId};

/// The shortest part, but for last ones: shorter ones cost more in frames than they gain in balance.
pub const MIN_PART_BYTES: usize = 256 << 10;

/// The shares of one spare host and of one worker host.
pub fn shares(worker_hosts: usize, spare_hosts: usize) -> (f64, f64) {
    let (n, k) = (worker_hosts as f64, spare_hosts as f64);
    if spare_hosts == 0 {
        return (0.0, 1.0 / n.max(1.0));
    }
    // From k = n on, worker hosts have enough to do with their own traffic.
    if spare_hosts >= worker_hosts {
        return (1.0 / k, 0.0);
    }
    let all = n * n + k * n - 2.0 * k;
    (2.0 * (n - 1.0) / all, (n - k) / all)
}

/// How long an exchange of one byte takes in units of the time that byte takes over one network card.
pub fn seconds_per_byte(worker_hosts: usize, spare_hosts: usize) -> f64 {
    let (n, k) = (worker_hosts as f64, spare_hosts as f64);
    if spare_hosts >= worker_hosts && spare_hosts > 0 { 1.0 } else { 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k) }
}

/// Rows of each part of something of so many rows: as even as possible, of [`MIN_PART_BYTES`] to [`MAX_PART_BYTES`], and
/// as many as there are servers if they can be that long.
pub fn part_rows(rows: u64, row_bytes: usize, servers: usize) -> Vec<u64> {
    let row_bytes = row_bytes.max(1) as u64;
    let bytes = rows.saturating_mul(row_bytes);
    let most = (MAX_PART_BYTES as u64 / row_bytes).max(1);
    let least = rows.div_ceil(most).max(1);
    // Several parts a server, so that its summing hides behind the wire.
    let wished = (16 * servers as u64).min(bytes / MIN_PART_BYTES as u64);
    let parts = wished.clamp(least, rows.max(1).max(least));
    (0..parts).map(|p| rows / parts + u64::from(p < rows % parts)).collect()
}

/// How full each server is.
#[derive(Clone, Debug)]
pub struct Loads {
    shares: Vec<f64>,
    bytes: Vec<f64>,
}

impl Loads {
    /// Empty servers with these shares; those with none get nothing.
    pub fn new(shares: Vec<f64>) -> Self {
        let shares: Vec<f64> = shares.into_iter().map(|s| if s.is_finite() && s > 0.0 { s } else { 0.0 }).collect();
        let bytes = vec![0.0; shares.len()];
        let nobody = shares.iter().all(|s| *s == 0.0);
        Self { shares: if nobody { vec![1.0; bytes.len()] } else { shares }, bytes }
    }

    /// Deals parts of these lengths; gives the server of each.
    pub fn place(&mut self, parts: &[usize]) -> Vec<ServerId> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|part| std::cmp::Reverse(parts[*part]));
        let mut homes = vec![ServerId::FIRST; parts.len()];
        for part in order {
            let after = |server: &usize| (self.bytes[*server] + parts[part] as f64) / self.shares[*server];
            let servers = (0..self.shares.len()).filter(|server| self.shares[*server] > 0.0);
            let Some(server) = servers.min_by(|a, b| after(a).total_cmp(&after(b))) else { continue };
            self.bytes[server] += parts[part] as f64;
            homes[part] = ServerId(server as u32);
        }
        homes
    }

    /// Bytes at each server.
    pub fn bytes(&self) -> &[f64] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_formula() {
        // n, k and the gain over the ring: 1 + k/n - 2k/n^2.
        for (n, k, gain) in [(4, 1, 1.125), (4, 2, 1.25), (8, 2, 1.1875), (8, 4, 1.375), (32, 8, 1.234_375)] {
            let (spare, worker) = shares(n, k);
            assert!((spare * k as f64 + worker * n as f64 - 1.0).abs() < 1e-12);
            let ring = 2.0 * (n as f64 - 1.0) / n as f64;
            assert!((ring / seconds_per_byte(n, k) - gain).abs() < 1e-9, "{n} + {k}");
            // What the formula says is what the busiest card does: a worker sends what others hold, and answers for its part.
            let worker_card = 1.0 - worker + worker * (n as f64 - 1.0);
            assert!((worker_card - seconds_per_byte(n, k)).abs() < 1e-9 && spare * n as f64 <= worker_card + 1e-9);
        }
        assert_eq!(shares(4, 4), (0.25, 0.0));
        assert_eq!(shares(4, 0), (0.0, 0.25));
        assert_eq!(shares(2, 5), (0.2, 0.0));
    }

    #[test]
    fn parts_are_neither_short_nor_long_and_lose_nothing() {
        for (rows, row_bytes, servers) in
            [(1 << 18, 64, 4), (3, 4, 4), (0, 4, 2), (1, 4, 1), (1_000_001, 256, 3), (25_000_000, 4, 8)]
        {
            let parts = part_rows(rows, row_bytes, servers);
            assert_eq!(parts.iter().sum::<u64>(), rows);
            let longest = *parts.iter().max().unwrap() as usize * row_bytes;
            assert!(longest <= MAX_PART_BYTES, "{longest}");
            assert!(parts.len() == 1 || longest + row_bytes >= MIN_PART_BYTES, "{parts:?}");
        }
        assert_eq!(part_rows(1 << 18, 64, 8).len(), 64);
    }

    #[test]
    fn servers_are_filled_to_their_share() {
        let (spare, worker) = shares(4, 2);
        let mut loads = Loads::new(vec![spare, spare, worker, worker, worker, worker]);
        let homes = loads.place(&vec![1 << 20; 120]);
        assert_eq!(homes.len(), 120);
        for (bytes, share) in loads.bytes().iter().zip([spare, spare, worker, worker, worker, worker]) {
            assert!((bytes / f64::from(1 << 20) - 120.0 * share).abs() <= 1.0, "{bytes} for {share}");
        }
        let mut same = Loads::new(vec![0.0, f64::NAN]);
        assert_eq!(same.place(&[5, 5]).iter().map(|home| home.0).sum::<u32>(), 1);
    }
}
