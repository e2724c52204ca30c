//! `corro k8s run`: makes a job in a cluster, shows what its ranks write, and ends as it does. Whatever happens, nothing is left.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use corro_core::{Error, Rank, Result};
use serde_json::Value;

use super::exit::tell;
use super::signals;
use crate::kubernetes::follow::{Following, Step, Verdict};
use crate::kubernetes::kubectl::Kubectl;
use crate::kubernetes::log_lines::LogLines;
use crate::kubernetes::pods::Pod;
use crate::kubernetes::{Job, documents, objects, owned};
use crate::output::{Output, Style};
use crate::process_id::ProcessId;

const NAME: &str = "corro k8s run";
/// How long a call of kubectl may take.
const CALL: Duration = Duration::from_secs(60);
/// How long a job's objects stay when it is over and nobody is there any more to delete them.
const KEEP_SECONDS: u64 = 3600;
/// How long victims may be seen before the one that failed first.
const BLAME_TIME: Duration = Duration::from_secs(3);
/// How long a pod that can't begin may try: a registry may be late, and a Secret.
const STUCK_TIME: Duration = Duration::from_secs(30);
/// How long the rest of the logs may take when the job is over.
const LOG_TIME: Duration = Duration::from_secs(10);
/// The pause before kubectl is asked again for something that has ended early.
const AGAIN: Duration = Duration::from_millis(500);
/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(100);

/// What happens, from all threads, in one queue.
enum Event {
    /// A pod as the API describes it, and whether it is gone.
    Pod(Value, bool),
    Log {
        rank: usize,
        bytes: Vec<u8>,
    },
    LogEnd,
    Signal(i32),
}

/// How it was asked to be run.
pub(super) struct Run {
    pub(super) kubectl: Kubectl,
    pub(super) start_timeout: Duration,
    /// Its objects stay.
    pub(super) keep: bool,
}

impl Run {
    /// Runs a job to its end, and gives its exit code.
    pub(super) fn job(&self, mut job: Job) -> Result<u8> {
        job.keep_seconds = (!self.keep).then_some(KEEP_SECONDS);
        let set = signals::block()?;
        let there = self.kubectl.call(&["get", "job", &job.name, "--ignore-not-found", "--output=name"], "", CALL)?;
        if !there.trim().is_empty() {
            let name = &job.name;
            return Err(Error::Usage(format!(
                "there is already a Job {name} in the cluster: give another --name, or `kubectl delete job {name}`"
            )));
        }
        let (sender, events) = channel();
        pass_on(set, sender.clone())?;
        let all = objects(&job);
        let made = self.make(&all);
        let ended = made.and_then(|()| Follower::new(self, &job, sender)?.follow(&events));
        if self.keep {
            tell(&format!("{NAME}: {} stays in the cluster (--keep)", job.name));
        } else if let Err(e) = self.remove(&all) {
            tell(&format!("{NAME}: not everything could be removed: {e}"));
        }
        let verdict = ended?;
        if let Some(why) = verdict.why {
            tell(&format!("{NAME}: {why}"));
        }
        Ok(verdict.code)
    }

    /// All objects, each the property of the Job, so that they go with it if we can't see to that.
    fn make(&self, all: &[Value]) -> Result<()> {
        let apply = ["apply", "--server-side", "--field-manager=corro", "--output=json", "--filename=-"];
        let answer = self.kubectl.call(&apply, &documents(all), CALL)?;
        let uid = uid_of_job(&answer)
            .ok_or_else(|| Error::Malformed("kubectl printed no name of a Job that it created".into()))?;
        self.kubectl.call(&apply, &documents(&owned(all, &uid)), CALL).map(drop)
    }

    fn remove(&self, all: &[Value]) -> Result<()> {
        let delete = ["delete", "--ignore-not-found", "--wait=false", "--cascade=foreground", "--filename=-"];
        self.kubectl.call(&delete, &documents(all), CALL).map(drop)
    }
}

/// The number of the Job in what `kubectl apply --output=json` prints: a list, or objects one after the other.
fn uid_of_job(answer: &str) -> Option<String> {
    let values = serde_json::Deserializer::from_str(answer).into_iter::<Value>().map_while(Result::ok);
    let mut objects = values.flat_map(|value| match value["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![value],
    });
    objects.find(|object| object["kind"] == "Job")?["metadata"]["uid"].as_str().map(str::to_owned)
}

/// Follows one job.
struct Follower<'a> {
    run: &'a Run,
    following: Following,
    /// The driver of an elastic job has put names in front of lines already.
    bare: bool,
    output: Output,
    sender: Sender<Event>,
    /// Logs that are still being read.
    logs: usize,
    begin: Instant,
}

impl<'a> Follower<'a> {
    fn new(run: &'a Run, job: &Job, sender: Sender<Event>) -> Result<Self> {
        let bare = job.elastic.is_some();
        let following = if bare { Following::driver() } else { Following::ranks(job.ranks) };
        let style = Style { bare, ..Style::default() };
        let ranks = if bare { 1 } else { job.ranks };
        let output = Output::new(style, ranks, [Box::new(std::io::stdout()), Box::new(std::io::stderr())])?;
        let labels = job.labels();
        let labels = labels.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name, value.as_str()?)));
        let selector = labels.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
        let (kubectl, pods) = (run.kubectl.clone(), sender.clone());
        thread(move || watch_pods(&kubectl, &selector, &pods))?;
        Ok(Self { run, following, bare, output, sender, logs: 0, begin: Instant::now() })
    }

    fn follow(&mut self, events: &Receiver<Event>) -> Result<Verdict> {
        let (mut failed_at, mut stuck_at): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            match events.recv_timeout(TICK) {
                Ok(Event::Signal(signal)) => {
                    tell(&format!("{NAME}: signal {signal}: the job is removed"));
                    return Ok(Verdict { code: u8::try_from(128 + signal).unwrap_or(1), why: None });
                }
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Bug("nobody is left to be heard".into())),
            }
            let now = Instant::now();
            if let Some(verdict) = self.following.verdict() {
                let since = *failed_at.get_or_insert(now);
                if verdict.code == 0 || self.bare || now >= since + BLAME_TIME {
                    self.read_rest(events)?;
                    return Ok(self.following.verdict().unwrap_or(verdict));
                }
                continue;
            }
            match self.following.stuck() {
                Some(why) if now >= *stuck_at.get_or_insert(now) + STUCK_TIME => {
                    return Ok(Verdict { code: 1, why: Some(why) });
                }
                Some(_) => {}
                None => stuck_at = None,
            }
            if now >= self.begin + self.run.start_timeout
                && let Some(late) = self.following.late()
            {
                let limit = self.run.start_timeout;
                return Ok(Verdict { code: 1, why: Some(format!("after {limit:?} (--start-timeout) {late}")) });
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Pod(object, gone) => {
                let steps = Pod::read(&object, gone).map(|pod| self.following.see(pod)).unwrap_or_default();
                steps.into_iter().try_for_each(|step| self.take(step))
            }
            Event::Log { rank, bytes } => self
                .output
                .put(ProcessId::of_rank(Rank::new(rank)), false, &bytes)
                .map_err(|e| Error::io("showing what ranks write", e)),
            Event::LogEnd => {
                self.logs -= 1;
                Ok(())
            }
            Event::Signal(_) => Ok(()),
        }
    }

    fn take(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Say(text) => self.output.say(&format!("{NAME}: {text}")),
            Step::Read { pod, rank } => {
                self.logs += 1;
                let (kubectl, sender) = (self.run.kubectl.clone(), self.sender.clone());
                thread(move || read_log(&kubectl, &pod, rank, &sender))?;
            }
        }
        Ok(())
    }

    /// What ranks wrote last.
    fn read_rest(&mut self, events: &Receiver<Event>) -> Result<()> {
        let until = Instant::now() + LOG_TIME;
        while self.logs > 0 && Instant::now() < until {
            match events.recv_timeout(TICK) {
                Ok(Event::Signal(_)) => break,
                Ok(event) => self.handle(event)?,
                Err(_) => {}
            }
        }
        self.output.close();
        Ok(())
    }
}

/// Tells of every change of the pods, for ever. A watch that ends, which the API allows itself, is begun again: what is known is
/// told again then, which does no harm.
fn watch_pods(kubectl: &Kubectl, selector: &str, events: &Sender<Event>) {
    let words = ["get", "pods", "--watch", "--output-watch-events", "--output=json", "--selector", selector];
    loop {
        if let Ok(stream) = kubectl.stream(&words) {
            let stream = std::io::BufReader::new(stream);
            for change in serde_json::Deserializer::from_reader(stream).into_iter::<Value>().map_while(Result::ok) {
                if events.send(Event::Pod(change["object"].clone(), change["type"] == "DELETED")).is_err() {
                    return;
                }
            }
        }
        std::thread::sleep(AGAIN);
    }
}

/// Reads a pod's log to its end. One that is cut off while its program runs is taken up again where it was.
fn read_log(kubectl: &Kubectl, pod: &str, rank: usize, events: &Sender<Event>) {
    let mut lines = LogLines::default();
    loop {
        let since = lines.since().map(|time| format!("--since-time={time}"));
        let mut words = vec!["logs", "--follow", "--timestamps", "--container=rank", pod];
        words.extend(since.as_deref());
        if let Ok(mut stream) = kubectl.stream(&words) {
            let mut bytes = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                let new = lines.feed(&bytes[..count]);
                if !new.is_empty() && events.send(Event::Log { rank, bytes: new }).is_err() {
                    return;
                }
            }
        }
        // A log ends with its program; a pod that nobody knows has none.
        let running = ["get", "pod", pod, "--output=jsonpath={.status.containerStatuses[0].state.running.startedAt}"];
        if kubectl.call(&running, "", CALL).is_ok_and(|text| text.trim().is_empty()) {
            break;
        }
        if kubectl.call(&["get", "pod", pod, "--output=name"], "", CALL).is_err() {
            break;
        }
        std::thread::sleep(AGAIN);
        lines.begin_again();
    }
    let _ = events.send(Event::LogEnd);
}

fn pass_on(set: nix::sys::signal::SigSet, events: Sender<Event>) -> Result<()> {
    thread(move || {
        let mut asked = false;
        while let Ok(signal) = set.wait() {
            if std::mem::replace(&mut asked, true) {
                // Asked twice: at once. The cluster removes the job an hour after its end.
                std::process::exit(128 + signal as i32);
            }
            let _ = events.send(Event::Signal(signal as i32));
        }
    })
}

fn thread(body: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().spawn(body).map(drop).map_err(|e| Error::io("starting a thread", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_number_is_found_in_lists_and_rows() {
        let job = r#"{"kind": "Job", "metadata": {"uid": "u-1"}}"#;
        assert_eq!(
            uid_of_job(&format!(r#"{{"kind": "List", "items": [{{"kind": "Secret"}}, {job}]}}"#)),
            Some("u-1".into())
        );
        assert_eq!(uid_of_job(&format!("{{\"kind\": \"Service\"}}\n{job}\n")), Some("u-1".into()));
        assert_eq!(uid_of_job("nonsense"), None);
    }
}
