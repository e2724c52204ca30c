//! What of the launcher's environment reaches the ranks.
//!
//! Pure. Everything the user has set reaches every rank, except what belongs to one host, one login or one shell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Never passed on: a shell's private business, and what only a job's own launcher may say.
fn is_private(name: &[u8]) -> bool {
    let exact: &[&[u8]] = &[b"_", b"OLDPWD", b"SHLVL", b"PWD", b"_HOROVOD_SECRET_KEY", b"CORRO_SECRET"];
    exact.contains(&name) || name.starts_with(b"BASH_FUNC_") || name.is_empty() || name.contains(&b'=')
}

/// Where the other host knows better.
fn belongs_to_the_host(name: &[u8]) -> bool {
    let exact: &[&[u8]] =
        &[b"HOME", b"USER", b"LOGNAME", b"MAIL", b"SHELL", b"HOSTNAME", b"DISPLAY", b"TMPDIR", b"CUDA_VISIBLE_DEVICES"];
    let of_slurm: &[&[u8]] = &[b"ROCR_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL", b"SLURMD_NODENAME", b"SLURM_NODEID"];
    let families: &[&[u8]] = &[b"SSH_", b"XDG_", b"DBUS_"];
    exact.contains(&name) || of_slurm.contains(&name) || families.iter().any(|f| name.starts_with(f))
}

/// What the launcher sends: its own environment without what is private.
pub(crate) fn passed_on(own: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    own.filter(|(name, _)| !is_private(name.as_bytes())).collect()
}

/// The names of those of its own variables that a launcher passes on to other hosts.
pub(crate) fn passed_to_another_host(
    own: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = OsString> {
    passed_on(own).into_iter().map(|(name, _)| name).filter(|name| !belongs_to_the_host(name.as_bytes()))
}

/// What the ranks of another host start with: what the launcher `sent`, and the host's `own` variables where the host
/// knows better.
pub(super) fn on_another_host(
    own: impl Iterator<Item = (OsString, OsString)>,
    sent: Vec<(OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let hosts = |name: &OsStr| belongs_to_the_host(name.as_bytes());
    let mut all: Vec<_> = own.filter(|(name, _)| hosts(name)).collect();
    all.extend(sent.into_iter().filter(|(name, _)| !hosts(name)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(n, v)| (OsString::from(n), OsString::from(v))).collect()
    }

    #[test]
    fn shells_keep_their_business_and_users_get_theirs_through() {
        let all = variables(&[
            ("PATH", "/bin"),
            ("BASH_FUNC_x%%", "() { :; }"),
            ("OLDPWD", "/"),
            ("CORRO_SECRET", "aa"),
            ("WEIRD", "a=b\n$(x) 'y'"),
            ("CUDA_VISIBLE_DEVICES", "1"),
        ]);
        let kept = passed_on(all.into_iter());
        assert_eq!(kept, variables(&[("PATH", "/bin"), ("WEIRD", "a=b\n$(x) 'y'"), ("CUDA_VISIBLE_DEVICES", "1")]));
    }

    #[test]
    fn another_host_keeps_its_home_and_its_gpus() {
        let own = variables(&[("HOME", "/home/there"), ("PATH", "/usr/bin"), ("SSH_CONNECTION", "x")]);
        let sent = variables(&[("HOME", "/root"), ("PATH", "/opt/bin"), ("CUDA_VISIBLE_DEVICES", "1"), ("A", "b")]);
        let merged = on_another_host(own.into_iter(), sent);
        let want = [("HOME", "/home/there"), ("SSH_CONNECTION", "x"), ("PATH", "/opt/bin"), ("A", "b")];
        assert_eq!(merged, variables(&want));
    }
}
