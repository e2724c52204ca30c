//! Slurm's short way to write many names: `n[1-3,07-09],m` is `n1,n2,n3,n07,n08,n09,m`.

use corro_core::{Error, Result};

/// More names than any cluster has: a list that makes more is not believed.
const MOST: usize = 1 << 20;

/// All names, in the order of the list.
pub(super) fn expand(list: &str) -> Result<Vec<String>> {
    let wrong = || Error::Usage(format!("{list:?} is not a list of hosts as Slurm writes it, such as `n[1-3,07],m`"));
    let mut names = Vec::new();
    for part in split(list).ok_or_else(wrong)? {
        let budget = MOST - names.len();
        names.extend(one(part, budget).ok_or_else(wrong)?);
    }
    let good = |name: &String| {
        let mut letters = name.chars();
        letters.next().is_some_and(char::is_alphanumeric) && letters.all(|c| c.is_alphanumeric() || "._-".contains(c))
    };
    if names.is_empty() || !names.iter().all(good) {
        return Err(wrong());
    }
    Ok(names)
}

/// Cuts at the commas that are not in brackets.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                parts.push(list[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[begin..].trim());
    (!inside).then_some(parts)
}

/// The names of one part, which may have several brackets: `r[1-2]n[1-4]`. No more than `budget`.
fn one(part: &str, budget: usize) -> Option<Vec<String>> {
    let Some((front, rest)) = part.split_once('[') else { return (budget > 0).then(|| vec![part.to_owned()]) };
    let (ranges, rest) = rest.split_once(']')?;
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        numbers.extend(expand_range(range.trim(), budget - numbers.len().min(budget))?);
    }
    let tails = one(rest, budget)?;
    if numbers.len().checked_mul(tails.len())? > budget {
        return None;
    }
    Some(numbers.iter().flat_map(|n| tails.iter().map(move |tail| format!("{front}{n}{tail}"))).collect())
}

/// `07-10` as `07, 08, 09, 10`: as wide as it was written.
fn expand_range(range: &str, budget: usize) -> Option<Vec<String>> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let Some((first, last)) = range.split_once('-') else {
        return (digits(range) && budget > 0).then(|| vec![range.to_owned()]);
    };
    if !digits(first) || !digits(last) {
        return None;
    }
    let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let count = usize::try_from(to.checked_sub(from)?).ok()?;
    if count >= budget {
        return None;
    }
    let width = first.len();
    Some((from..=to).map(|n| format!("{n:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As `scontrol show hostnames` of Slurm 22.05 writes them out.
    #[test]
    fn lists_as_slurm_prints_them() {
        for (list, want) in [
            ("s1", "s1"),
            ("s[1-2]", "s1 s2"),
            ("node[08-11]", "node08 node09 node10 node11"),
            ("n[1-3,07-09],m", "n1 n2 n3 n07 n08 n09 m"),
            ("gpu-a[3,5]-ib,login", "gpu-a3-ib gpu-a5-ib login"),
            ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
            ("c1-0[1-2].cluster", "c1-01.cluster c1-02.cluster"),
            ("n[099-101]", "n099 n100 n101"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), want, "{list}");
        }
    }

    #[test]
    fn nonsense_is_told() {
        for list in [
            "",
            "n[",
            "n]",
            "n[1-2",
            "n[a-b]",
            "n[2-1]",
            "n[]",
            "a,,b",
            "-x",
            "n[[1]]",
            "n[1-]",
            "a b",
            "n[0-99999999999]",
            "n[1-9999]m[1-9999]",
            "n[1-99999999999999999999999]",
        ] {
            assert!(expand(list).unwrap_err().to_string().contains("Slurm"), "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_names_or_an_error(list in "[ab\\[\\],0-9. -]{0,40}") {
            for name in expand(&list).into_iter().flatten() {
                prop_assert!(!name.is_empty() && !name.starts_with('-') && !name.contains(['[', ']', ',', ' ']));
            }
        }
    }
}
