//! Which hosts are there: a list that stays, or a script that is asked again and again.
//!
//! Owns the thread that asks. A script that fails or hangs costs nothing but its answer: the last list holds. Only if it
//! never gave one is that the end.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Error, Result};

use super::job::Hosts;
use crate::event::Event;
use crate::hosts::{self, Host};
use crate::{allocation, process_tree, start};

/// How long a script may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// How long the asking thread may take to end a script that runs, and itself.
const STOP_TIME: Duration = Duration::from_secs(2);

/// Asks until dropped. Nothing that it has started is left then.
pub(super) struct Discovery {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Discovery {
    pub(super) fn start(hosts: Hosts, events: Sender<Event>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seeker = Seeker { events, stop: Arc::clone(&stop), local: BTreeMap::new() };
        let thread = std::thread::Builder::new()
            .name("corro-discovery".into())
            .spawn(move || seeker.run(hosts))
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Self { stop, thread })
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Waited for, so that a script that runs is killed before this process ends. But a name server that does not answer
        // may hold the thread up, and must not hold up the end of the job.
        let until = Instant::now() + STOP_TIME;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

struct Seeker {
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
    /// Whether a host is this one: names are looked up here, where that may take its time.
    local: BTreeMap<String, bool>,
}

impl Seeker {
    fn run(self, hosts: Hosts) {
        match hosts {
            Hosts::Fixed(list) => {
                let mut seeker = self;
                seeker.tell(list);
            }
            // Who joins is told by the listener for agents.
            Hosts::Joined => {}
            Hosts::Script { command, slots_per_host, every } => {
                let name = format!("the host discovery script {}", command.display());
                self.keep_asking(&command, &name, every, None, |text| hosts::parse_found(text, slots_per_host));
            }
            Hosts::Slurm { job, hosts, every } => {
                let command = format!("squeue --noheader --jobs={job} --format=%N");
                let left = hosts.clone();
                let mut seeker = self;
                // Those it has at the beginning are known without asking.
                seeker.tell(hosts.clone());
                seeker.keep_asking(Path::new(&command), "asking Slurm", every, Some(hosts), |text| {
                    still_there(&left, text)
                });
            }
        }
    }

    fn keep_asking(
        mut self,
        command: &Path,
        name: &str,
        every: Duration,
        mut last: Option<Vec<Host>>,
        read: impl Fn(&str) -> Result<Vec<Host>>,
    ) {
        let mut complained = String::new();
        while !self.stop.load(Ordering::Acquire) {
            let asked = Instant::now();
            match self.ask(command).and_then(|text| read(&text)) {
                Ok(found) => {
                    complained.clear();
                    if last.as_ref() != Some(&found) {
                        last = Some(found.clone());
                        self.tell(found);
                    }
                }
                Err(error) => {
                    let text = format!("{name}: {error}");
                    if last.is_none() {
                        let _ = self.events.send(Event::NoHosts(text));
                        return;
                    }
                    // Once, not every second.
                    if complained != text {
                        let _ = self.events.send(Event::Complaint(format!("{text}; the last list of hosts holds")));
                        complained = text;
                    }
                }
            }
            while asked.elapsed() < every && !self.stop.load(Ordering::Acquire) {
                std::thread::sleep(LOOK.min(every));
            }
        }
    }

    fn tell(&mut self, list: Vec<Host>) {
        let is_local = |local: &mut BTreeMap<String, bool>, host: &Host| {
            // A host with a user is reached by ssh in any case, and has a name of its own here.
            *local.entry(host.full_name()).or_insert_with(|| start::is_local(host).unwrap_or(false))
        };
        let told = list.into_iter().map(|host| (is_local(&mut self.local, &host), host)).map(|(l, h)| (h, l)).collect();
        let _ = self.events.send(Event::Hosts(told));
    }

    /// What the script prints. Its errors go where ours go.
    fn ask(&self, script: &Path) -> Result<String> {
        let failed = |e: std::io::Error| Error::io("running it", e);
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(script)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // A group of its own, so that all of it can be ended, and Ctrl-C is ours alone.
            .process_group(0);
        process_tree::kill_with_parent(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let mut stdout = child.stdout.take().ok_or_else(|| Error::Bug("a script without a pipe".into()))?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            // More than any list of hosts is not one.
            let outcome = stdout.by_ref().take(16 << 20).read_to_string(&mut text);
            outcome.map(|_| text)
        });
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if Instant::now() >= until || self.stop.load(Ordering::Acquire) {
                if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                    process_tree::kill_tree(pid);
                }
                let _ = child.wait();
                return Err(Error::io("running it", format!("it has not ended within {PATIENCE:?}, so it was killed")));
            }
            std::thread::sleep(LOOK);
        };
        if !status.success() {
            // What a shell means by them.
            let advice = match status.code() {
                Some(126) => "; may it be executed? (chmod +x)",
                Some(127) => "; is it there, and what its first line names?",
                _ => "",
            };
            return Err(Error::io("running it", format!("{status}{advice}")));
        }
        while !reader.is_finished() {
            if Instant::now() >= until || self.stop.load(Ordering::Acquire) {
                return Err(Error::io("running it", "something it has started keeps its standard output open"));
            }
            std::thread::sleep(LOOK);
        }
        let text = reader.join().map_err(|_| Error::Bug("reading from a script panicked".into()))?;
        text.map_err(|e| Error::io("reading what it printed", e))
    }
}

/// Those of `hosts` that are in what `squeue` prints of their job. A job that is not in the queue any more has none.
fn still_there(hosts: &[Host], text: &str) -> Result<Vec<Host>> {
    let list = text.trim();
    if list.is_empty() || list == "(null)" {
        return Ok(Vec::new());
    }
    let names = allocation::expand(list)?;
    Ok(hosts.iter().filter(|host| names.contains(&host.name)).cloned().collect())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn script(text: &str) -> Hosts {
        let every = Duration::from_millis(20);
        Hosts::Script { command: text.into(), slots_per_host: Some(2), every }
    }

    #[test]
    fn changes_are_told_once_and_failures_are_borne() {
        let path = std::env::temp_dir().join(format!("corro-discovery-{}", std::process::id()));
        std::fs::write(&path, "localhost\n").unwrap();
        let (sender, events) = channel();
        let _asking = Discovery::start(script(&format!("cat {}", path.display())), sender).unwrap();
        let hosts = |slots| vec![(Host { user: None, name: "localhost".into(), slots }, true)];
        assert!(matches!(events.recv_timeout(SOON).unwrap(), Event::Hosts(h) if h == hosts(2)));
        std::fs::remove_file(&path).unwrap();
        assert!(
            matches!(events.recv_timeout(SOON).unwrap(), Event::Complaint(t) if t.contains("the last list of hosts holds"))
        );
        std::fs::write(&path, "localhost:3\n").unwrap();
        assert!(matches!(events.recv_timeout(SOON).unwrap(), Event::Hosts(h) if h == hosts(3)));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_script_that_runs_ends_with_the_asking_and_so_do_its_children() {
        let path = std::env::temp_dir().join(format!("corro-discovery-children-{}", std::process::id()));
        let (sender, _events) = channel();
        let asking =
            Discovery::start(script(&format!("sleep 300 & echo $! >{}; wait", path.display())), sender).unwrap();
        let until = Instant::now() + SOON;
        let child = loop {
            if let Some(pid) = std::fs::read_to_string(&path).ok().and_then(|t| t.trim().parse::<i32>().ok()) {
                break pid;
            }
            assert!(Instant::now() < until, "the script has not begun");
            std::thread::sleep(LOOK);
        };
        drop(asking);
        let lives = || std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|s| !s.contains(") Z "));
        while lives() {
            assert!(Instant::now() < until, "the script's child {child} is left");
            std::thread::sleep(LOOK);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn slurm_says_which_hosts_are_left() {
        let hosts = hosts::parse_list("s1:2,s2:2,s3:2").unwrap();
        let left = |text| still_there(&hosts, text).map(|list| list.iter().map(|h| h.name.clone()).collect::<Vec<_>>());
        assert_eq!(left("s[1-3]\n").unwrap(), ["s1", "s2", "s3"]);
        assert_eq!(left("s[1,3]\n").unwrap(), ["s1", "s3"]);
        assert_eq!(left("\n").unwrap(), [""; 0]);
        assert!(left("slurm_load_jobs error: Unable to contact slurm controller\n").is_err());
    }

    #[test]
    fn one_that_never_works_is_the_end() {
        let (sender, events) = channel();
        let _asking = Discovery::start(script("exit 3"), sender).unwrap();
        assert!(matches!(events.recv_timeout(SOON).unwrap(), Event::NoHosts(t) if t.contains("exit 3")));
    }
}
