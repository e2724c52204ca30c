//! What an agent itself has to say: lines of the one log, which the launcher shows; on the agent's own standard error where there is
//! no launcher that could.

use std::sync::{Mutex, MutexGuard, PoisonError};

use corro_core::config::{LOG_LEVEL, Variable};
use corro_log::{Log, Options};
use serde_bytes::ByteBuf;
use tracing::level_filters::LevelFilter;

/// Lines that wait to be passed on; more are lost.
const MAX_LINES: usize = 1000;

/// Said and not yet passed on. A process has one log, whatever launchers its agent serves one after the other.
static WAITING: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on all that crates say in this process is kept for the launcher, as far as its environment wants to hear it. (That
/// of the first launcher, if there are several.)
pub(super) fn start(environment: &[(ByteBuf, ByteBuf)]) {
    let sink = |line: &str| {
        let mut lines = waiting();
        if lines.len() < MAX_LINES {
            lines.push(line.to_owned());
        }
    };
    waiting().clear();
    let options = Options::of(|variable| value(environment, variable));
    corro_log::init_to(options, &speaker(), Box::new(sink));
}

/// What was said since the last time.
pub(super) fn take() -> Vec<String> {
    std::mem::take(&mut *waiting())
}

fn waiting() -> MutexGuard<'static, Vec<String>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has what `say` says written to this process's standard error, as its own environment wants its log. Without
/// `CORRO_LOG_LEVEL` that is what matters as much as `least`.
pub(crate) fn on_stderr(least: LevelFilter, say: impl FnOnce()) {
    let mut options = Options::from_env();
    if LOG_LEVEL.value().is_none() {
        options.least = least;
    }
    let log = Log::new(options, Box::new(corro_log::pass_on)).named(&speaker());
    tracing::subscriber::with_default(log, say);
}

fn speaker() -> String {
    format!("agent on {}", corro_transport::host_name())
}

/// What an environment holds of a setting, by either of its names.
fn value(environment: &[(ByteBuf, ByteBuf)], variable: &Variable) -> Option<String> {
    let of = |wanted: &str| {
        let (_, value) = environment.iter().find(|(name, _)| name.as_slice() == wanted.as_bytes())?;
        String::from_utf8(value.to_vec()).ok()
    };
    of(variable.name).or_else(|| of(variable.horovod?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_two_names() {
        let set = |name: &str, text: &str| (ByteBuf::from(name), ByteBuf::from(text));
        assert_eq!(value(&[set("HOROVOD_LOG_LEVEL", "debug")], &LOG_LEVEL).as_deref(), Some("debug"));
        let both = [set("HOROVOD_LOG_LEVEL", "debug"), set("CORRO_LOG_LEVEL", "info")];
        assert_eq!(value(&both, &LOG_LEVEL).as_deref(), Some("info"));
        assert_eq!(value(&[], &LOG_LEVEL), None);
    }
}
