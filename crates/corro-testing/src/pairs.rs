//! Pairwise coverage: most mistakes show when two particular values meet, whatever the others are.

/// A column, and one of its values.
type Choice = (usize, usize);
type Pair = (Choice, Choice);

/// Rows of choices such that any value of any column meets any value of any other column in some row.
///
/// `columns[c]` is how many values column `c` has; a row gives one of them for each column. The number of rows grows with
/// the product of the two longest columns, not with the product of all. `skip` leaves out what can't be: it is asked with
/// a pair of `(column, value)`, and rows then have no such pair. The same input gives the same rows.
///
/// # Panics
/// If what `skip` leaves out makes a row impossible.
pub fn pairs(columns: &[usize], skip: impl Fn(Choice, Choice) -> bool) -> Vec<Vec<usize>> {
    let clash = |a: Choice, b: Choice| skip(a, b) || skip(b, a);
    let mut missing: Vec<Pair> = Vec::new();
    for (first, many) in columns.iter().enumerate() {
        for (second, others) in columns.iter().enumerate().skip(first + 1) {
            for value in 0..*many {
                missing.extend(
                    (0..*others).map(|other| ((first, value), (second, other))).filter(|(a, b)| !clash(*a, *b)),
                );
            }
        }
    }
    let mut rows = Vec::new();
    while let Some(&(a, b)) = missing.first() {
        let mut row: Vec<Option<usize>> = vec![None; columns.len()];
        row[a.0] = Some(a.1);
        row[b.0] = Some(b.1);
        for column in 0..columns.len() {
            if row[column].is_none() {
                row[column] = Some(best(column, columns[column], &row, &missing, &clash, rows.len()));
            }
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        missing.retain(|(a, b)| row[a.0] != a.1 || row[b.0] != b.1);
        rows.push(row);
    }
    rows
}

/// The value that meets most of what has not met yet; among equals another one each time, so that triples vary too.
fn best(
    column: usize,
    many: usize,
    row: &[Option<usize>],
    missing: &[Pair],
    clash: &impl Fn(Choice, Choice) -> bool,
    turn: usize,
) -> usize {
    let fits = |value: usize| {
        row.iter()
            .enumerate()
            .all(|(other, chosen)| chosen.is_none_or(|chosen| !clash((column, value), (other, chosen))))
    };
    let gain = |value: usize| {
        let met = |(a, b): &Pair| {
            *a == (column, value) && row[b.0] == Some(b.1) || *b == (column, value) && row[a.0] == Some(a.1)
        };
        missing.iter().filter(|pair| met(pair)).count()
    };
    (0..many)
        .map(|i| (i + turn) % many)
        .filter(|value| fits(*value))
        .max_by_key(|value| gain(*value))
        .unwrap_or_else(|| panic!("no value of column {column} goes with {row:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_there_and_rows_are_few() {
        let columns = [5, 13, 5, 4];
        let rows = pairs(&columns, |_, _| false);
        for first in 0..4 {
            for second in first + 1..4 {
                for a in 0..columns[first] {
                    for b in 0..columns[second] {
                        let met = rows.iter().any(|row| row[first] == a && row[second] == b);
                        assert!(met, "value {a} of column {first} never meets {b} of {second}");
                    }
                }
            }
        }
        // The product of the two longest is 65, of all 1300.
        assert!((65..=90).contains(&rows.len()), "{} rows", rows.len());
    }

    #[test]
    fn what_is_left_out_is_nowhere_and_all_else_is() {
        let skip = |a: Choice, b: Choice| a == (0, 1) && b == (1, 2);
        let rows = pairs(&[3, 3, 2], skip);
        assert!(rows.iter().all(|row| (row[0], row[1]) != (1, 2)));
        for (a, b) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))).filter(|pair| *pair != (1, 2)) {
            assert!(rows.iter().any(|row| (row[0], row[1]) == (a, b)), "{a} and {b}");
        }
    }

    #[test]
    fn one_column_has_no_pairs_and_two_have_them_all() {
        assert_eq!(pairs(&[4], |_, _| false), Vec::<Vec<usize>>::new());
        assert_eq!(pairs(&[2, 3], |_, _| false).len(), 6);
    }
}
