//! Rows of a table, taken and added to by their numbers, and lists of such numbers: what sparse gradients need.
//!
//! Which row comes next is known long before it is needed, so it is asked for ahead of time: tables are far larger than caches,
//! and a row that has to be waited for takes longer than all else that is done with it.

use corro_core::{DType, ReduceOp};

use crate::InstructionSet;

/// So many rows ahead memory is asked for.
const AHEAD: usize = 16;
/// And so many bytes of each; what lies behind them the machine fetches by itself.
const AHEAD_BYTES: usize = 512;
const LINE: usize = 64;

/// Adds row `i` of `from` to row `to[i]` of `into`, one after the other: rows that are there twice are added in that order. The
/// first number that is no row of `into` is the error; nothing after it is added then.
pub fn add_rows(dtype: DType, into: &mut [u8], row_bytes: usize, to: &[i64], from: &[u8]) -> Result<(), i64> {
    let best = InstructionSet::best();
    for (i, (at, row)) in to.iter().zip(from.chunks_exact(row_bytes.max(1))).enumerate() {
        fetch_ahead(into, row_bytes, to.get(i + AHEAD));
        let place = place_of(*at, row_bytes, into.len()).and_then(|place| into.get_mut(place)).ok_or(*at)?;
        best.reduce(ReduceOp::Sum, dtype, place, row);
    }
    Ok(())
}

/// Row `i` of `into` becomes row `which[i]` of `table`. The first number that is no row of the table is the error.
pub fn take_rows(into: &mut [u8], row_bytes: usize, which: &[i64], table: &[u8]) -> Result<(), i64> {
    for (i, (at, row)) in which.iter().zip(into.chunks_exact_mut(row_bytes.max(1))).enumerate() {
        fetch_ahead(table, row_bytes, which.get(i + AHEAD));
        row.copy_from_slice(place_of(*at, row_bytes, table.len()).and_then(|place| table.get(place)).ok_or(*at)?);
    }
    Ok(())
}

/// Where the row with this number begins and ends, if a table of so many bytes has it.
fn place_of(number: i64, row_bytes: usize, table_bytes: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(number).ok()?.checked_mul(row_bytes)?;
    let end = start.checked_add(row_bytes)?;
    (end <= table_bytes).then_some(start..end)
}

/// Asks for a row that is needed soon. A number that is no row is found when its turn comes.
fn fetch_ahead(table: &[u8], row_bytes: usize, number: Option<&i64>) {
    let Some(row) = number.and_then(|number| place_of(*number, row_bytes, table.len())) else { return };
    for line in table[row].iter().step_by(LINE).take(AHEAD_BYTES / LINE) {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "an instruction")]
        // SAFETY: a hint; it reads nothing, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(line).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

/// Numbers, each once, in the order in which they first come; `which[i]` becomes the place of `numbers[i]` among them.
///
/// # Panics
/// If `which` is not as long as `numbers`, or there are 2^32 - 1 of them or more.
pub fn distinct(numbers: &[i64], which: &mut [i64]) -> Vec<i64> {
    const FREE: u32 = u32::MAX;
    assert_eq!(numbers.len(), which.len(), "a place for each number");
    assert!(numbers.len() < FREE as usize, "too many numbers");
    // Twice as many places as can be needed: a number is found where its hash says, or soon after. By its upper bits, which all
    // bits of the number have a part in.
    let places = (2 * numbers.len()).next_power_of_two().max(2);
    let shift = 64 - places.trailing_zeros();
    let mut taken = vec![FREE; places];
    let mut found: Vec<i64> = Vec::new();
    for (number, which) in numbers.iter().zip(which) {
        let hash = number.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut at = (hash >> shift) as usize;
        *which = loop {
            match taken[at] {
                FREE => {
                    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
                    let new = found.len() as u32;
                    taken[at] = new;
                    found.push(*number);
                    break i64::from(new);
                }
                known if found[known as usize] == *number => break i64::from(known),
                _ => at = (at + 1) & (places - 1),
            }
        };
    }
    found
}

/// Deals numbers to `hands`: number n goes to n mod `hands`, as n / `hands`, in the order in which they come. `dealt` gets those
/// of the first hand, then those of the second, and so on; `moved[i]` becomes the place of `numbers[i]` there. Says how many each
/// has got; the first number that is negative is the error.
///
/// # Panics
/// If there are no hands, or the three lists are not equally long.
pub fn deal(numbers: &[i64], hands: usize, dealt: &mut [i64], moved: &mut [i64]) -> Result<Vec<usize>, i64> {
    assert!(numbers.len() == dealt.len() && numbers.len() == moved.len(), "a place for each number");
    let hand_of = |number: u64| usize::try_from(number % hands as u64).expect("smaller than the number of hands");
    let mut counts = vec![0; hands];
    for number in numbers {
        counts[hand_of(u64::try_from(*number).map_err(|_| *number)?)] += 1;
    }
    // Where the next one of each hand goes.
    let mut next: Vec<usize> = Vec::with_capacity(hands);
    let mut before = 0;
    for count in &counts {
        next.push(before);
        before += count;
    }
    for (number, moved) in numbers.iter().map(|number| number.cast_unsigned()).zip(moved) {
        let place = &mut next[hand_of(number)];
        dealt[*place] = (number / hands as u64).cast_signed();
        *moved = i64::try_from(*place).expect("no list is that long");
        *place += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    /// Numbers from 0 to `below`, many of them more than once; the same ones on every run.
    fn some_numbers(count: usize, below: u64) -> Vec<i64> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            i64::try_from((state >> 33) % below).unwrap()
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn rows_are_added_where_they_belong() {
        let mut into = bytes(&[0.0, 0.0, 10.0, 20.0, 5.0, 5.0]);
        let from = bytes(&[1.0, 2.0, 3.0, 4.0, 1e8, -1e8, -1e8, 1e8]);
        add_rows(DType::F32, &mut into, 8, &[1, 0, 1, 1], &from).unwrap();
        // One after the other: what 11 and 22 lose to 1e8 is lost.
        assert_eq!(into, bytes(&[3.0, 4.0, 11.0f32 + 1e8 - 1e8, 22.0f32 - 1e8 + 1e8, 5.0, 5.0]));
    }

    #[test]
    fn rows_are_taken() {
        let table = bytes(&[0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        let mut into = vec![0; 32];
        take_rows(&mut into, 8, &[2, 0, 2, 1], &table).unwrap();
        assert_eq!(into, bytes(&[2.0, 2.5, 0.0, 0.5, 2.0, 2.5, 1.0, 1.5]));
    }

    #[test]
    fn rows_of_all_lengths_are_taken_and_added() {
        for width in [1, 3, 16, 64, 300] {
            let numbers = some_numbers(100, 40);
            let table: Vec<f32> = (0..40 * width).map(|i: u16| f32::from(i)).collect();
            let mut taken = vec![0; numbers.len() * 4 * usize::from(width)];
            take_rows(&mut taken, 4 * usize::from(width), &numbers, &bytes(&table)).unwrap();
            let row = |number: i64| {
                let start = usize::try_from(number).unwrap() * usize::from(width);
                &table[start..start + usize::from(width)]
            };
            let expected: Vec<f32> = numbers.iter().flat_map(|number| row(*number).to_vec()).collect();
            assert_eq!(taken, bytes(&expected), "width {width}");

            let mut sums = vec![0.0f32; table.len()];
            for number in &numbers {
                let start = usize::try_from(*number).unwrap() * usize::from(width);
                sums[start..].iter_mut().zip(row(*number)).for_each(|(sum, more)| *sum += more);
            }
            let mut into = bytes(&vec![0.0; table.len()]);
            add_rows(DType::F32, &mut into, 4 * usize::from(width), &numbers, &taken).unwrap();
            assert_eq!(into, bytes(&sums), "width {width}");
        }
    }

    #[test]
    fn numbers_that_are_no_row_are_named() {
        let mut into = [0u8; 8];
        for wrong in [-1, 2, i64::MAX, i64::MIN] {
            assert_eq!(add_rows(DType::F32, &mut into, 4, &[0, wrong], &[0; 8]), Err(wrong));
            assert_eq!(take_rows(&mut into, 4, &[0, wrong], &[0; 8]), Err(wrong));
        }
        assert_eq!(add_rows(DType::F32, &mut into, 0, &[0], &[]), Ok(()));
    }

    #[test]
    fn each_number_is_found_once() {
        let mut lists = vec![vec![], vec![7], vec![5, -1, 5, i64::MAX, i64::MIN, -1, 0], some_numbers(5000, 700)];
        // Numbers whose hashes are the same, or neighbours.
        lists.push((0..300).map(|n| n << 56).chain((0..300).map(|n| n << 40)).collect());
        for numbers in lists {
            let mut which = vec![-1; numbers.len()];
            let found = distinct(&numbers, &mut which);
            let mut expected: Vec<i64> = Vec::new();
            for number in &numbers {
                if !expected.contains(number) {
                    expected.push(*number);
                }
            }
            assert_eq!(found, expected);
            for (number, which) in numbers.iter().zip(which) {
                assert_eq!(found[usize::try_from(which).unwrap()], *number);
            }
        }
    }

    #[test]
    fn numbers_are_dealt_in_their_order() {
        let (mut dealt, mut moved) = (vec![0; 6], vec![0; 6]);
        let counts = deal(&[7, 3, 0, 4, 9, 2], 3, &mut dealt, &mut moved);
        assert_eq!(counts, Ok(vec![3, 2, 1]));
        // 3, 0 and 9; then 7 and 4; then 2.
        assert_eq!(dealt, [1, 0, 3, 2, 1, 0]);
        assert_eq!(moved, [3, 0, 1, 4, 2, 5]);
        assert_eq!(deal(&[], 2, &mut [], &mut []), Ok(vec![0, 0]));
        assert_eq!(deal(&[1, -3], 2, &mut [0; 2], &mut [0; 2]), Err(-3));
    }
}
