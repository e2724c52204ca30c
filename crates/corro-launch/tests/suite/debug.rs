//! `corro run --debug`: one rank has the user's terminal.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{self, Folder, HANG_LIMIT, run, run_command};

fn script(folder: &Folder, text: &str) -> String {
    let path = folder.join("train.py");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A terminal of the test's own: what is typed into it, and what a person would see.
struct Screen {
    master: std::fs::File,
    slave: OwnedFd,
    seen: String,
}

impl Screen {
    fn new() -> Self {
        use rustix::pty::OpenptFlags;
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        rustix::io::ioctl_fionbio(&master, true).unwrap();
        Self { master: master.into(), slave, seen: String::new() }
    }

    fn start(&self, words: &[&str]) -> std::process::Child {
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        run_command(words).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    fn wait_for(&mut self, text: &str) {
        self.wait_for_all(&[text]);
    }

    /// Waits for all of these, in any order.
    fn wait_for_all(&mut self, texts: &[&str]) {
        let until = Instant::now() + HANG_LIMIT;
        while !texts.iter().all(|text| self.seen.contains(text)) {
            assert!(Instant::now() < until, "{texts:?} never came: {:?}", self.seen);
            let mut bytes = [0; 4096];
            match self.master.read(&mut bytes) {
                Ok(count) => self.seen.push_str(&String::from_utf8_lossy(&bytes[..count])),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        // What comes next is waited for in what comes next.
        let end = texts.iter().map(|text| self.seen.find(text).unwrap() + text.len()).max().unwrap();
        self.seen.drain(..end);
    }

    fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn modes(&self) -> (rustix::termios::LocalModes, rustix::termios::InputModes) {
        let now = rustix::termios::tcgetattr(&self.slave).unwrap();
        (now.local_modes, now.input_modes)
    }
}

#[test]
fn a_breakpoint_of_one_rank_works_on_this_terminal() {
    let folder = Folder::new("debug");
    let path = script(
        &folder,
        "import os\nrank = int(os.environ['CORRO_RANK'])\nprint('timeout', os.environ['CORRO_TIMEOUT'])\n\
         if rank == 1:\n    breakpoint()\nprint('done', rank)\n",
    );
    let mut screen = Screen::new();
    let before = screen.modes();
    let mut child = screen.start(&["-n", "2", "--debug", "1", "--color", "never", &path]);
    screen.wait_for_all(&["[0]<stdout>:done 0", "(Pdb) "]);
    screen.type_in("print('answer', 6 * 7, rank)\r");
    screen.wait_for("answer 42 1");
    screen.wait_for("(Pdb) ");
    screen.type_in("c\r");
    screen.wait_for("done 1");
    assert_eq!(support::wait(&mut child, HANG_LIMIT).code(), Some(0));
    assert_eq!(screen.modes(), before, "the terminal is as it was");
}

#[test]
fn control_c_is_for_the_rank_at_the_terminal_alone() {
    let folder = Folder::new("debug");
    let path = script(
        &folder,
        "import os, time\nrank = int(os.environ['CORRO_RANK'])\nif rank == 0:\n    input('ready? ')\n\
         print('sleeping', rank)\ntry:\n    time.sleep(1000 if rank == 0 else 0)\nexcept KeyboardInterrupt:\n    print('stopped', rank)\n",
    );
    let mut screen = Screen::new();
    let mut child = screen.start(&["-n", "2", "--debug", "0", "--no-prefix", &path]);
    screen.wait_for("ready? ");
    screen.type_in("yes\r");
    screen.wait_for("sleeping 0");
    screen.type_in("\x03");
    screen.wait_for("stopped 0");
    assert_eq!(support::wait(&mut child, HANG_LIMIT).code(), Some(0));
}

#[test]
fn input_that_is_no_terminal_reaches_the_rank_too() {
    let mut child = run_command(&["-n", "2", "--debug", "1", "sh", "-c", "[ $CORRO_RANK = 0 ] || cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"typed in\n").unwrap();
    assert_eq!(support::wait(&mut child, HANG_LIMIT).code(), Some(0), "the end of input ends it");
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    // Once as the terminal's echo, once from `cat`.
    assert_eq!(out.matches("typed in").count(), 2, "{out:?}");
}

#[test]
fn what_cannot_be_debugged_is_said() {
    for (words, text) in [
        (&["-n", "2", "--debug", "2", "true"][..], "this job has ranks 0 to 1"),
        (&["-n", "2", "--min-np", "1", "--debug", "0", "true"], "fixed size"),
        (&["-n", "2", "--debug", "x", "true"], "--debug is \"x\""),
    ] {
        let ran = run(words);
        assert!(ran.code == Some(2) && ran.err.contains(text), "{ran:?}");
    }
}
