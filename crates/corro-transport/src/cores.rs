//! How many cores this process may really use, and so whether waiting may spin.
//!
//! A rank that spins while another one needs its core makes both slow, so the answer comes from the affinity mask and
//! the control group's quota, not from the number of cores the machine has.

use std::path::Path;

/// Cores this process may use: the smaller of its affinity mask and its CPU quota, at least 1.
pub fn usable() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    let quota = control_group_quota(Path::new("/"));
    allowed.min(quota.unwrap_or(usize::MAX)).max(1)
}

/// Cores that all processes of this host's job may use together: those that are there, or the CPU quota.
pub fn of_the_host() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|text| count(&text));
    let quota = control_group_quota(Path::new("/"));
    online.unwrap_or_else(usable).min(quota.unwrap_or(usize::MAX)).max(1)
}

/// How many numbers a list such as `0-3,8` holds.
fn count(text: &str) -> Option<usize> {
    let number = |digits: &str| digits.trim().parse::<usize>().ok();
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(number(last)?.checked_sub(number(first)?)? + 1),
        None => number(part).map(|_| 1),
    };
    text.trim().split(',').map(part).sum()
}

/// Whether `ranks` ranks of this host may spin while they wait: only if each has a core to itself.
pub fn may_spin(ranks: usize) -> bool {
    ranks <= usable()
}

/// Keeps this thread on one core.
pub fn pin(core: usize) -> std::io::Result<()> {
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut one = rustix::thread::CpuSet::new();
    one.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &one)?)
}

/// The core this thread runs on.
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// Moves this thread to a core that is not in `taken`, if it is allowed on one. Only a push: its affinity is as before
/// when this returns, and the system may move it again.
pub(crate) fn move_away(taken: impl Iterator<Item = usize>) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut free = allowed;
    taken.filter(|core| *core < rustix::thread::CpuSet::MAX_CPU).for_each(|core| free.unset(core));
    if free.count() > 0 && rustix::thread::sched_setaffinity(None, &free).is_ok() {
        let _ = rustix::thread::sched_setaffinity(None, &allowed);
    }
}

/// The CPU quota in whole cores (rounded up), if there is one. `root` is "/" outside tests.
fn control_group_quota(root: &Path) -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let own = read("proc/self/cgroup").unwrap_or_default();
    let mut quotas = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let path = path.trim_start_matches('/');
        // The quota of every group on the way up holds too; inside a container only the innermost is usually visible.
        for at in Path::new(path).ancestors() {
            if controllers.is_empty() {
                quotas.extend(read(&format!("sys/fs/cgroup/{}/cpu.max", at.display())).and_then(|t| cores_v2(&t)));
            } else if controllers.split(',').any(|c| c == "cpu") {
                let file = |name: &str| read(&format!("sys/fs/cgroup/{controllers}/{}/{name}", at.display()));
                if let (Some(quota), Some(period)) = (file("cpu.cfs_quota_us"), file("cpu.cfs_period_us")) {
                    quotas.extend(cores_v1(&quota, &period));
                }
            }
        }
    }
    quotas.into_iter().min()
}

/// `cpu.max` of control groups v2: "max 100000" or "150000 100000".
fn cores_v2(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    cores_v1(quota, period)
}

fn cores_v1(quota: &str, period: &str) -> Option<usize> {
    let quota: usize = quota.trim().parse().ok()?;
    let period: usize = period.trim().parse().ok().filter(|p| *p > 0)?;
    Some(quota.div_ceil(period).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_round_up_and_max_is_none() {
        assert_eq!(cores_v2("max 100000\n"), None);
        assert_eq!(cores_v2("150000 100000"), Some(2));
        assert_eq!(cores_v2("5000 100000"), Some(1));
        assert_eq!(cores_v1("-1", "100000"), None);
        assert_eq!(cores_v1("1", "0"), None);
    }

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!([count("0-3,8\n"), count("0"), count("3-1"), count("")], [Some(5), Some(1), None, None]);
        assert!(of_the_host() >= usable());
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let root = std::env::temp_dir().join(format!("corro-cores-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/job/step\n");
        write("sys/fs/cgroup/job/cpu.max", "200000 100000");
        write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
        assert_eq!(control_group_quota(&root), Some(2));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn moving_away_leaves_the_core_and_keeps_the_affinity() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let taken = current();
        move_away(std::iter::once(taken));
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
        // All cores taken, or nonsense: nothing happens.
        move_away(0..1 << 20);
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn this_machine_has_at_least_one() {
        assert!(usable() >= 1);
        assert!(may_spin(1));
        assert!(!may_spin(1 << 20));
    }
}
