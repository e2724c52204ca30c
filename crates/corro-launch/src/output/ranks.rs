//! Which ranks a user wants to see: `0`, `0,3`, `0-3,7`. Pure.

use std::ops::RangeInclusive;

use corro_core::{Error, Rank, Result};

/// Some ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(Vec<RangeInclusive<Rank>>);

impl Ranks {
    /// Reads `text`; `flag` is for the error.
    pub fn parse(text: &str, flag: &str) -> Result<Self> {
        let wrong = || Error::Usage(format!("{flag} is {text:?}, which is not a list of ranks such as 0 or 0,2-3"));
        let number = |text: &str| text.trim().parse::<Rank>().ok();
        let part = |part: &str| match part.split_once('-') {
            Some((first, last)) => Some(number(first)?..=number(last)?).filter(|range| !range.is_empty()),
            None => number(part).map(|rank| rank..=rank),
        };
        text.split(',').map(part).collect::<Option<Vec<_>>>().map(Self).ok_or_else(wrong)
    }

    /// Whether `rank` is among them.
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.iter().any(|range| range.contains(&rank))
    }

    /// The highest of them.
    pub fn highest(&self) -> Rank {
        self.0.iter().map(|range| *range.end()).max().unwrap_or(Rank::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let ranks = Ranks::parse("0, 2-4,9", "--ranks").unwrap();
        let inside: Vec<usize> = Rank::all(12).filter(|r| ranks.contains(*r)).map(Rank::index).collect();
        assert_eq!((inside.as_slice(), ranks.highest()), ([0, 2, 3, 4, 9].as_slice(), Rank::new(9)));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "a", "1,", "3-1", "-1", "1-2-3", "0x1"] {
            let error = Ranks::parse(text, "--ranks").unwrap_err().to_string();
            assert!(error.contains("--ranks is"), "{text}: {error}");
        }
    }
}
