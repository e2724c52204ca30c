//! What a user should know about how a job was started. Decisions are pure; rank 0 logs them, see
//! [`crate::Engine::review_environment`].

use corro_core::config;
use corro_transport::cores;

/// A word about threads where a launcher other than ours has started several ranks on a host and nobody has said how many
/// threads their libraries may use.
pub(crate) fn on_threads(local_size: usize) -> Option<String> {
    if config::foreign("OMP_NUM_THREADS").is_some() {
        return None;
    }
    threads(local_size, cores::usable(), cores::of_the_host())
}

/// `usable` is what this rank may use, `all` what the ranks of the host may use together.
fn threads(ranks: usize, usable: usize, all: usize) -> Option<String> {
    // Ranks that were bound to cores of their own don't get into each other's way. Half as many again is tolerable.
    let crowded = ranks > 1 && usable * ranks * 2 > all * 3;
    crowded.then(|| {
        let each = (all / ranks).max(1);
        format!(
            "{ranks} ranks share the {all} cores of this host, and the libraries in each of them may use {usable}: steps can \
             take several times as long. Set OMP_NUM_THREADS={each} (`corro run` does so by itself)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crowded_cores_are_worth_a_word() {
        assert!(threads(2, 8, 8).unwrap().contains("OMP_NUM_THREADS=4"));
        assert!(threads(16, 8, 8).unwrap().contains("OMP_NUM_THREADS=1"));
        assert_eq!(threads(1, 8, 8), None);
        assert_eq!(threads(8, 1, 8), None, "bound to a core each");
        assert_eq!(threads(2, 4, 8), None, "bound to a socket each");
    }
}
