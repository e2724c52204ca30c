//! The one way by which Corro talks to Kubernetes: the user's `kubectl`, which knows his clusters, accounts and plugins for signing
//! in. Every call has a time limit; what streams is killed with its owner.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use corro_core::{Error, Result};

use crate::process_tree;

/// How often it is looked whether a call has ended.
const LOOK: Duration = Duration::from_millis(5);
/// The most that is read of one answer.
const MOST: u64 = 64 << 20;

/// `kubectl`, with the words that every call has.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    pub(crate) program: OsString,
    pub(crate) common: Vec<String>,
}

impl Kubectl {
    /// In this context and namespace, or in those that it uses anyway.
    pub(crate) fn new(program: OsString, context: Option<&str>, namespace: Option<&str>) -> Self {
        let flag = |name: &str, value: Option<&str>| value.map(|value| format!("--{name}={value}"));
        Self {
            program,
            common: [flag("context", context), flag("namespace", namespace)].into_iter().flatten().collect(),
        }
    }

    /// Runs it to its end, and gives what it prints. `input` goes to its standard input: secrets are never on a command line.
    pub(crate) fn call(&self, words: &[&str], input: &str, limit: Duration) -> Result<String> {
        let doing = || format!("running `kubectl {}`", words.join(" "));
        let failed = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => Error::Usage(format!(
                "{} is not there: install kubectl, or say where it is by --kubectl PATH",
                self.program.display()
            )),
            _ => Error::io(doing(), e),
        };
        let mut child = self.command(words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::Bug("kubectl without pipes".into()));
        };
        let input = input.to_owned();
        // One that does not read its input says why on its standard error.
        std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let read = |mut pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = pipe.by_ref().take(MOST).read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let (answer, complaint) = (read(Box::new(stdout)), read(Box::new(stderr)));
        let until = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if Instant::now() >= until {
                kill(&mut child);
                return Err(Error::io(doing(), format!("it has not ended within {limit:?}: does the cluster answer?")));
            }
            std::thread::sleep(LOOK);
        };
        let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
        if status.success() {
            return Ok(text(answer));
        }
        Err(Error::io(doing(), format!("{status}: {}", text(complaint).trim())))
    }

    /// Starts it, and gives what it prints as it comes.
    pub(crate) fn stream(&self, words: &[&str]) -> Result<Stream> {
        let failed = |e: std::io::Error| Error::io(format!("starting `kubectl {}`", words.join(" ")), e);
        let mut child = self.command(words).stdin(Stdio::null()).stderr(Stdio::null()).spawn().map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| Error::Bug("kubectl without a pipe".into()))?;
        Ok(Stream { child, stdout })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // A group of its own, so that Ctrl-C is ours alone.
        command.args(words).args(&self.common).stdout(Stdio::piped()).process_group(0);
        process_tree::kill_with_parent(&mut command);
        command
    }
}

/// A `kubectl` that goes on printing. Killed when dropped.
pub(crate) struct Stream {
    child: Child,
    stdout: ChildStdout,
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.stdout.read(bytes)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

fn kill(child: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        process_tree::kill_tree(pid);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Kubectl {
        Kubectl { program: "sh".into(), common: vec!["-c".into(), script.into()] }
    }

    #[test]
    fn answers_and_complaints_are_passed_on() {
        assert_eq!(shell("cat; echo done").call(&[], "in\n", SOON).unwrap(), "in\ndone\n");
        let error = shell("echo forbidden >&2; exit 3").call(&[], "", SOON).unwrap_err().to_string();
        assert!(error.contains("forbidden") && error.contains("exit status: 3"), "{error}");
        let missing = Kubectl::new("/nowhere/kubectl".into(), None, None).call(&["get"], "", SOON).unwrap_err();
        assert!(matches!(&missing, Error::Usage(text) if text.contains("--kubectl")), "{missing}");
    }

    #[test]
    fn one_that_hangs_is_given_up() {
        let error = shell("sleep 100").call(&[], "", Duration::from_millis(100)).unwrap_err().to_string();
        assert!(error.contains("not ended within"), "{error}");
    }

    #[test]
    fn every_call_names_context_and_namespace() {
        let kubectl = Kubectl::new("echo".into(), Some("c"), Some("n"));
        assert_eq!(kubectl.call(&["get", "pods"], "", SOON).unwrap(), "get pods --context=c --namespace=n\n");
    }

    #[test]
    fn a_stream_ends_with_its_owner() {
        let mut stream = shell("echo begun; sleep 100").stream(&[]).unwrap();
        let mut bytes = [0; 6];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"begun\n");
        let begin = Instant::now();
        drop(stream);
        assert!(begin.elapsed() < SOON);
    }
}
