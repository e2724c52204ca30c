//! What a launcher holds of all this: the story, the clock it needs, and the files that are made of it.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use corro_core::{Error, Result};

use crate::note::Note;
use crate::recording;
use crate::story::Story;
use crate::values::ValueFiles;
use crate::view::{Since, View};

/// How often the story is told that time passes.
const TICK: Duration = Duration::from_millis(250);
/// How often the recording is written: at first, and at most. It takes the longer, the more there is to write.
const SAVE: Duration = Duration::from_secs(5);

/// How long processes have to say where their threads are.
const STACKS: Duration = Duration::from_secs(3);
/// And their flight records: they are told with the next note, and a rank that is stopped does not.
const RECORDS: Duration = Duration::from_secs(4);
/// Milliseconds after which it is asked what a rank does that others wait for.
const WORTH_A_STACK: u64 = 3000;

/// Where things go.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The recording.
    pub record: Option<PathBuf>,
    /// The folder of training values.
    pub values: Option<PathBuf>,
}

/// See the module.
#[derive(Debug)]
pub struct Watcher {
    story: Mutex<Story>,
    start: Instant,
    files: Files,
    over: Mutex<bool>,
    woken: Condvar,
    clock: Mutex<Option<JoinHandle<()>>>,
    asker: Mutex<Option<Asker>>,
}

/// What processes can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Where their threads are.
    Stacks,
    /// What their flight recorders hold.
    Records,
}

/// What asks all processes.
struct Asker(Box<dyn Fn(Question) + Send>);

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}

impl Watcher {
    /// Watches a job that is about to start.
    pub fn start(command: &str, files: Files) -> Result<Arc<Self>> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let values = files.values.as_ref().map(|folder| ValueFiles::create(folder, began)).transpose()?;
        let watcher = Arc::new(Self {
            story: Mutex::new(Story::new(command, began)),
            start: Instant::now(),
            files,
            over: Mutex::new(false),
            woken: Condvar::new(),
            clock: Mutex::new(None),
            asker: Mutex::new(None),
        });
        // A place that can't be written to is told before anything starts.
        watcher.save()?;
        let clock = std::thread::Builder::new()
            .name("corro-watcher".into())
            .spawn({
                let watcher = Arc::clone(&watcher);
                move || watcher.keep_time(values)
            })
            .map_err(|e| Error::io("starting a thread", e))?;
        *lock(&watcher.clock) = Some(clock);
        Ok(watcher)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Does something with the story, and the time.
    pub fn with<T>(&self, tell: impl FnOnce(&mut Story, u64) -> T) -> T {
        tell(&mut lock(&self.story), self.now())
    }

    /// A process has told something of itself.
    pub fn heard(&self, process: u32, host: &str, note: Note) {
        self.with(|story, now| story.heard(now, process, host, note));
    }

    /// How the story stands, for a reader that has so much of it.
    pub fn view(&self, since: Since) -> String {
        // Written outside of the lock: ranks' threads wait for it.
        self.with(|story, now| View::of(story, now, since)).json()
    }

    /// How processes are asked.
    pub fn ask_by(&self, asker: impl Fn(Question) + Send + 'static) {
        *lock(&self.asker) = Some(Asker(Box::new(asker)));
    }

    fn ask_stacks(&self) {
        self.with(|story, _| story.ask_stacks());
        self.ask(Question::Stacks);
    }

    fn ask(&self, question: Question) {
        if let Some(Asker(ask)) = &*lock(&self.asker) {
            ask(question);
        }
    }

    /// A recording of the job so far, with the flight records of all processes that tell theirs in time.
    pub fn recorded(&self) -> String {
        self.with(|story, _| story.ask_records());
        self.ask(Question::Records);
        let until = Instant::now() + RECORDS;
        while !self.with(|story, _| story.has_records()) && Instant::now() < until {
            std::thread::sleep(TICK / 5);
        }
        let view = self.with(|story, now| {
            let records = story.take_records();
            View { records, ..View::of(story, now, Since::default()) }
        });
        view.json()
    }

    /// Asks all processes where their threads are, and waits for the answers, not for long.
    pub fn stacks(&self) -> String {
        self.ask_stacks();
        let told = || self.with(|story, _| story.stacks().values().map(String::len).sum::<usize>());
        let until = Instant::now() + STACKS;
        let mut before = 0;
        // Until all that came has been there for a moment: nobody says which piece is the last.
        loop {
            std::thread::sleep(TICK);
            let now = told();
            if (now > 0 && now == before) || Instant::now() >= until {
                break;
            }
            before = now;
        }
        self.with(|story, _| {
            let members = story.members().iter();
            let text = members.filter_map(|(process, member)| {
                let stacks = story.stacks().get(process)?;
                let who = member.rank.map_or_else(|| format!("process {process}"), |rank| format!("rank {rank}"));
                Some(format!("{who} on {}:\n{}\n", member.host, stacks.trim_end()))
            });
            text.collect()
        })
    }

    /// The job is over.
    pub fn finish(&self, failure: Option<String>) {
        self.with(|story, now| story.over(now, failure));
        *lock(&self.asker) = None;
        *lock(&self.over) = true;
        self.woken.notify_all();
        if let Some(clock) = lock(&self.clock).take() {
            let _ = clock.join();
        }
    }

    fn save(&self) -> Result<()> {
        match &self.files.record {
            Some(path) => recording::write(path, &self.view(Since::default())),
            None => Ok(()),
        }
    }

    fn keep_time(&self, mut values: Option<ValueFiles>) {
        let (mut saved, mut pause) = (Instant::now(), SAVE);
        let mut asked = false;
        loop {
            let over = lock(&self.over);
            let over = if *over {
                over
            } else {
                self.woken.wait_timeout(over, TICK).unwrap_or_else(PoisonError::into_inner).0
            };
            let over = *over;
            self.with(Story::tick);
            // Who is waited for long is asked once what it does meanwhile.
            let stalls = self.with(|story, now| story.stall(now).is_some_and(|stall| stall.lasts >= WORTH_A_STACK));
            if stalls && !asked {
                self.ask_stacks();
            }
            asked = stalls;
            let means = self.with(|story, _| story.training.take());
            if let Some(files) = &mut values
                && let Err(error) = files.write(&means)
            {
                tracing::warn!("training values can't be written any more: {error}");
                values = None;
            }
            if over || saved.elapsed() >= pause {
                let began = Instant::now();
                if let Err(error) = self.save() {
                    tracing::warn!("{error}");
                }
                // No more than a hundredth of the launcher's time.
                pause = SAVE.max(began.elapsed() * 100);
                saved = Instant::now();
            }
            if over {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::Value;

    #[test]
    fn a_job_leaves_its_recording_and_its_values() {
        let folder = std::env::temp_dir().join(format!("corro-watcher-{}", std::process::id()));
        let files = Files { record: Some(folder.join("run.corro")), values: Some(folder.clone()) };
        let watcher = Watcher::start("train.py", files).unwrap();
        let values = vec![Value { step: 1, name: "loss".into(), value: 0.5 }];
        watcher.heard(0, "node", Note { size: 1, values, ..Note::default() });
        watcher.finish(None);
        let (_, value) = recording::read(&folder.join("run.corro")).unwrap();
        let lines = std::fs::read_to_string(folder.join("values.jsonl")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((value["state"].as_str(), value["training"]["loss"][0][1].as_f64()), (Some("done"), Some(0.5)));
        assert!(lines.contains("\"loss\""), "{lines}");
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_told_at_once() {
        let files = Files { record: Some("/nowhere/run.corro".into()), values: None };
        assert!(Watcher::start("x", files).unwrap_err().to_string().contains("/nowhere/run.corro"));
    }
}
