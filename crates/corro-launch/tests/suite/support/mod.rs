//! What the process tests share: running `corro` with a hang limit, and looking for processes left behind.

pub(crate) mod browser;
pub(crate) mod elastic;
pub(crate) mod netns;

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_testing::Random;
pub(crate) use corro_testing::{Folder, skip, wait_until};

/// No run of `corro` in a test takes longer, or the test fails.
pub(crate) const HANG_LIMIT: Duration = Duration::from_secs(90);

/// The program under test.
pub(crate) fn corro() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_corro"))
}

/// A program of `examples/`.
pub(crate) fn example(name: &str) -> String {
    corro().with_file_name("examples").join(name).display().to_string()
}

/// How a run ended and what it wrote.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

/// What comes out of a pipe, gathered as it comes.
struct Gathered {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Gathered {
    fn from(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut some) {
                all.lock().unwrap().extend_from_slice(&some[..count]);
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn whole(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

/// A run that goes on.
pub(crate) struct Running {
    pub(crate) child: Child,
    out: Gathered,
    err: Gathered,
    since: Instant,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("corro can be started");
        let out = Gathered::from(child.stdout.take().unwrap());
        let err = Gathered::from(child.stderr.take().unwrap());
        Self { child, out, err, since: Instant::now() }
    }

    /// What was written to standard output until now.
    pub(crate) fn out_so_far(&self) -> String {
        self.out.so_far()
    }

    /// What was written to standard error until now.
    pub(crate) fn err_so_far(&self) -> String {
        self.err.so_far()
    }

    /// Waits until `text` was written to standard output.
    pub(crate) fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} is written"), HANG_LIMIT, || self.out.so_far().contains(text));
    }

    /// Waits until `text` was written to standard error.
    pub(crate) fn wait_for_error(&self, text: &str) {
        wait_until(&format!("{text:?} is told"), HANG_LIMIT, || self.err.so_far().contains(text));
    }

    pub(crate) fn signal(&self, signal: &str) {
        kill(self.child.id() as i32, signal);
    }

    pub(crate) fn end(mut self) -> Ran {
        let status = wait(&mut self.child, HANG_LIMIT);
        Ran { code: status.code(), out: self.out.whole(), err: self.err.whole(), took: self.since.elapsed() }
    }
}

/// Waits for `child`, and kills it should it take too long.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> ExitStatus {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            panic!("process {} hung for {limit:?}", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal by name to one process.
pub(crate) fn kill(pid: i32, signal: &str) {
    let _ = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// `count` moments below `limit`, by a seed that is told; `CORRO_TEST_SEED` gives another.
pub(crate) fn moments(count: usize, limit: usize) -> Vec<String> {
    let seed = corro_testing::number("CORRO_TEST_SEED").unwrap_or(1);
    eprintln!("the moments come from CORRO_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(limit).to_string()).collect()
}

/// `corro run` with these words.
pub(crate) fn run_command(words: &[&str]) -> Command {
    let mut command = Command::new(corro());
    command.arg("run").args(words);
    clean(&mut command);
    command
}

#[expect(clippy::disallowed_methods, reason = "where programs are is no knob of ours")]
pub(crate) fn path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

/// Whatever started the tests must not be taken for the launcher of a job.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CORRO_", "HOROVOD_", "OMPI_", "PMI", "SLURM_", "LSB_", "JSM_"].iter().any(|p| text.starts_with(p)) {
            command.env_remove(&name);
        }
    }
    // Jobs that fail on purpose leave nothing behind.
    command.env("CORRO_FLIGHT_RECORD_DIR", "none");
}

pub(crate) fn run(words: &[&str]) -> Ran {
    Running::start(&mut run_command(words)).end()
}

/// A shell script as the command of a job, found again in the process table by its own unique word.
pub(crate) struct Script {
    pub(crate) mark: String,
    text: String,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self { mark: format!("corro-mark-{}-{n}", std::process::id()), text: text.into() }
    }

    /// `sh -c TEXT MARK`: the mark is `$0`.
    pub(crate) fn words(&self) -> Vec<&str> {
        vec!["sh", "-c", &self.text, &self.mark]
    }

    /// Processes whose command line or environment still has the mark.
    pub(crate) fn left(&self) -> Vec<i32> {
        marked(&self.mark)
    }

    /// Nothing is left, or will be soon.
    pub(crate) fn assert_gone(&self) {
        let what = format!("nothing is left of {} ({:?})", self.text, self.left());
        wait_until(&what, Duration::from_secs(30), || self.left().is_empty());
    }
}

/// Processes, other than this one, whose command line or environment has `mark`.
pub(crate) fn marked(mark: &str) -> Vec<i32> {
    let has = |path: String| std::fs::read(path).is_ok_and(|b| b.windows(mark.len()).any(|w| w == mark.as_bytes()));
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let alive = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "));
    pids.filter(|pid| *pid != std::process::id() as i32)
        .filter(|pid| has(format!("/proc/{pid}/cmdline")) || has(format!("/proc/{pid}/environ")))
        .filter(alive)
        .collect()
}

/// The example of the project: a job that trains by allreduce and checks that all ranks end with the same bits.
pub(crate) fn training() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = corro().parent().unwrap();
        let program = folder.join("corro-example");
        let mut build = Command::new(env!("CARGO"));
        // With the features of all crates, as the tests were built: alone it would have others, and all be compiled anew.
        build.args(["build", "--quiet", "--workspace", "--bin", "corro-example", "--manifest-path"]);
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
        build.arg("--target-dir").arg(folder.parent().unwrap());
        // What cargo tells a test about its package would make the inner cargo build everything anew, and then the outer.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"]
                .iter()
                .any(|p| text.starts_with(p))
            {
                build.env_remove(&name);
            }
        }
        if folder.file_name() == Some(OsStr::new("release")) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo can be run").success(), "the example can be built");
        program.to_str().unwrap().to_owned()
    })
}
