//! How many threads the libraries in a rank compute with. By themselves they take all cores of a host, each rank for
//! itself: with N ranks there are N times as many threads as cores, and steps take several times as long.
//!
//! Pure. What the user has set is never touched.

/// The cores of a host and the ranks that share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) host: String,
    pub(crate) cores: usize,
    pub(crate) ranks: usize,
}

/// The one that nearly all libraries follow.
const OPEN_MP: &str = "OMP_NUM_THREADS";
/// These follow [`OPEN_MP`] unless they are set themselves.
const FOLLOWERS: [&str; 2] = ["MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
/// TensorFlow's threads inside an operation.
const TENSORFLOW: &str = "TF_NUM_INTRAOP_THREADS";
/// TensorFlow's threads for operations that can run side by side.
const TENSORFLOW_OPERATIONS: &str = "TF_NUM_INTEROP_THREADS";

impl Share {
    /// Threads for each rank.
    fn threads(&self) -> usize {
        (self.cores / self.ranks.max(1)).max(1)
    }

    /// The variables of the ranks there. `is_set` says what the user has set.
    pub(crate) fn variables(&self, is_set: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        // A rank that has its host to itself may have all of it, which is what libraries do by themselves.
        if self.ranks < 2 {
            return Vec::new();
        }
        let threads = self.threads();
        let mut wanted = vec![(TENSORFLOW, threads)];
        // One would be too few: a step of the program that waits in an operation would keep all others from running.
        wanted.push((TENSORFLOW_OPERATIONS, threads.max(2)));
        if !is_set(OPEN_MP) {
            wanted.push((OPEN_MP, threads));
            wanted.extend(FOLLOWERS.map(|name| (name, threads)));
        }
        wanted.retain(|(name, _)| !is_set(name));
        wanted.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect()
    }
}

/// What the user is told about it, if there is something to tell.
pub(crate) fn sentence(shares: &[Share], is_set: impl Fn(&str) -> bool) -> Option<String> {
    let mut crowded = shares.iter().filter(|s| s.ranks > 1);
    let first = crowded.next().filter(|_| !is_set(OPEN_MP))?;
    let count = |threads: usize| if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let rest: Vec<&Share> = crowded.collect();
    let who = if rest.iter().all(|s| s.threads() == first.threads()) {
        let whose = if rest.is_empty() {
            format!("the {} cores of {}", first.cores, first.host)
        } else {
            "their hosts' cores".into()
        };
        format!("ranks share {whose}, so each computes with {}", count(first.threads()))
    } else {
        let all: Vec<String> =
            shares.iter().filter(|s| s.ranks > 1).map(|s| format!("{} on {}", count(s.threads()), s.host)).collect();
        format!("ranks share their hosts' cores, so each computes with {}", all.join(", "))
    };
    Some(format!("{who} ({OPEN_MP} and its kin); set {OPEN_MP} to choose another number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(host: &str, cores: usize, ranks: usize) -> Share {
        Share { host: host.into(), cores, ranks }
    }

    fn set(cores: usize, ranks: usize, user: &[&str]) -> String {
        let mut all = share("a", cores, ranks).variables(|name| user.contains(&name));
        all.sort();
        all.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn cores_are_shared_out() {
        let one = "MKL_NUM_THREADS=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
                   TF_NUM_INTEROP_THREADS=2 TF_NUM_INTRAOP_THREADS=1";
        assert_eq!(set(2, 2, &[]), one);
        assert_eq!(set(3, 2, &[]), one);
        assert_eq!(set(2, 64, &[]), one);
        assert_eq!(set(64, 8, &[]), one.replace("=1", "=8").replace("=2", "=8"));
        assert_eq!(set(64, 1, &[]), "");
    }

    #[test]
    fn the_users_choice_stays_and_what_follows_it_too() {
        assert_eq!(set(8, 2, &[OPEN_MP]), "TF_NUM_INTEROP_THREADS=4 TF_NUM_INTRAOP_THREADS=4");
        assert_eq!(set(8, 2, &[OPEN_MP, TENSORFLOW, TENSORFLOW_OPERATIONS]), "");
        assert!(!set(8, 2, &["MKL_NUM_THREADS"]).contains("MKL"));
    }

    #[test]
    fn it_is_said_once_in_one_sentence() {
        let nothing = |_: &str| false;
        assert_eq!(
            sentence(&[share("localhost", 2, 2)], nothing).unwrap(),
            "ranks share the 2 cores of localhost, so each computes with 1 thread (OMP_NUM_THREADS and its kin); \
             set OMP_NUM_THREADS to choose another number"
        );
        let two = sentence(&[share("a", 8, 2), share("b", 8, 2)], nothing).unwrap();
        assert!(two.starts_with("ranks share their hosts' cores, so each computes with 4 threads ("), "{two}");
        let mixed = sentence(&[share("a", 8, 2), share("b", 2, 2), share("c", 4, 1)], nothing).unwrap();
        assert!(mixed.contains("4 threads on a, 1 thread on b ("), "{mixed}");
        assert_eq!(sentence(&[share("a", 8, 1)], nothing), None);
        assert_eq!(sentence(&[share("a", 8, 2)], |name| name == OPEN_MP), None);
    }
}
