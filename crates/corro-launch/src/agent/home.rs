//! Whose an agent's surroundings are: those of a host, which the launcher's user has prepared like his own, or those of a
//! scheduler's task, which has prepared them for what runs in it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use corro_core::{Error, Result, config};
use serde_bytes::ByteBuf;

use super::environment;

/// Where an agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// On a host: ranks have the launcher's environment and directory, which every host has.
    Host,
    /// In a task (of Spark, say), by `corro agent --in-task=ADDRESS`: ranks have the task's, and of the launcher only what it
    /// says of the job. The task reaches the launcher at that address.
    Task(String),
    /// In a job step of a batch system, by `corro agent --in-step`: as on a host, but a first SIGTERM is the system's notice that it
    /// will end the job, and the launcher's to act on.
    Step,
    /// In a pod of its own (say), from where it has joined by `corro agent --join=HOST:PORT`: as in a task. A first SIGTERM means that
    /// the pod will go; the launcher lets its ranks go at their next commit, if it can.
    Joined(String),
}

impl Home {
    /// From the words behind `corro agent`.
    pub(crate) fn understand(words: &[OsString]) -> Result<Self> {
        match words {
            [] => Ok(Self::Host),
            [word] if word == "--in-step" => Ok(Self::Step),
            [word, rest @ ..] => match word.to_str().and_then(|word| word.strip_prefix("--in-task=")) {
                Some(address) if rest.is_empty() => Ok(Self::Task(address.into())),
                _ => Err(Error::Usage(format!(
                    "an agent does not know {}; it knows --in-task=ADDRESS, --in-step, --join=HOST:PORT",
                    word.display()
                ))),
            },
        }
    }

    /// The address by which the launcher is seen from here, if that is known.
    pub(super) fn caller(&self) -> Option<String> {
        match self {
            Self::Task(address) | Self::Joined(address) => Some(address.clone()),
            Self::Step => config::foreign("SLURM_LAUNCH_NODE_IPADDR"),
            Self::Host => {
                config::foreign("SSH_CONNECTION").and_then(|c| c.split_whitespace().next().map(str::to_owned))
            }
        }
    }

    /// What ranks start with: the agent has its `own` environment, the launcher has `sent` its.
    pub(super) fn environment(
        &self,
        own: impl Iterator<Item = (OsString, OsString)>,
        sent: Vec<(OsString, OsString)>,
        another_host: bool,
    ) -> Vec<(OsString, OsString)> {
        match self {
            Self::Task(_) | Self::Joined(_) => environment::passed_on(own),
            Self::Host | Self::Step if another_host => environment::on_another_host(own, sent),
            Self::Host | Self::Step => sent,
        }
    }
}

/// Where the agent itself was started.
pub(super) fn directory() -> Result<ByteBuf> {
    let directory = std::env::current_dir().map_err(|e| Error::io("finding the directory of this task", e))?;
    Ok(ByteBuf::from(directory.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_a_task_have_its_environment_and_no_other() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect()
        };
        let own = pairs(&[("PATH", "/task/bin"), ("CORRO_SECRET", "of another job"), ("A", "task")]);
        let sent = pairs(&[("PATH", "/launcher/bin"), ("B", "launcher")]);
        let task = Home::Task("10.0.0.1".into()).environment(own.clone().into_iter(), sent.clone(), true);
        assert_eq!(task, pairs(&[("PATH", "/task/bin"), ("A", "task")]));
        assert_eq!(Home::Host.environment(own.into_iter(), sent.clone(), false), sent);
    }

    #[test]
    fn an_agent_is_told_where_it_is_by_one_word() {
        let understand = |words: &[&str]| Home::understand(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(understand(&[]).unwrap(), Home::Host);
        assert_eq!(understand(&["--in-step"]).unwrap(), Home::Step);
        let task = understand(&["--in-task=10.0.0.1"]).unwrap();
        assert_eq!((&task, task.caller()), (&Home::Task("10.0.0.1".into()), Some("10.0.0.1".into())));
        assert!(understand(&["--in-task=10.0.0.1", "x"]).is_err());
        assert!(understand(&["--elsewhere"]).unwrap_err().to_string().contains("--in-task"));
    }
}
