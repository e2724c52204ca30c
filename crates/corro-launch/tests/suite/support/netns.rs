//! Hosts on one machine: network namespaces joined by a bridge, each with a real sshd.
//!
//! Everything is made inside namespaces of this test's own and is removed on every way out. Needs root, iproute2 and ssh;
//! sshd is taken from the system or unpacked by `tests/get-sshd`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Folder, kill, wait, wait_until};

pub(crate) const PORT: &str = "2222";

pub(crate) struct Hosts {
    names: Vec<String>,
    switch: String,
    sshds: Vec<Child>,
    folder: Folder,
}

/// A command that must work; the error says why it did not.
fn must(words: &[&str]) -> Result<(), String> {
    let out = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    match out {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(format!("`{}`: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim())),
        Err(e) => Err(format!("`{}`: {e}", words[0])),
    }
}

fn sshd() -> Result<PathBuf, String> {
    let here = Path::new("/usr/sbin/sshd");
    if here.exists() {
        return Ok(here.into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/get-sshd");
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sshd");
    // Tests run at the same time, each in a process of its own.
    let one_at_a_time = std::fs::File::create(into.with_extension("lock")).map_err(|e| e.to_string())?;
    one_at_a_time.lock().map_err(|e| e.to_string())?;
    let out = Command::new(script).arg(into).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("sshd can't be had: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().into())
}

impl Hosts {
    /// `count` hosts, or why they can't be made here.
    pub(crate) fn new(count: usize) -> Result<Self, String> {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let sshd = sshd()?;
        let tag = format!("corro-{}-{n}", std::process::id());
        let mut hosts = Self {
            names: (0..count).map(|i| format!("{tag}-h{i}")).collect(),
            switch: format!("{tag}-switch"),
            sshds: Vec::new(),
            folder: Folder::new("hosts"),
        };
        hosts.wire()?;
        hosts.keys()?;
        for at in 0..count {
            hosts.serve(at, &sshd)?;
        }
        Ok(hosts)
    }

    pub(crate) fn address(at: usize) -> String {
        format!("10.78.0.{}", at + 1)
    }

    /// `-H` for all hosts, with so many slots each.
    pub(crate) fn list(&self, slots: usize) -> String {
        (0..self.names.len()).map(|i| format!("{}:{slots}", Self::address(i))).collect::<Vec<_>>().join(",")
    }

    fn wire(&self) -> Result<(), String> {
        must(&["ip", "netns", "add", &self.switch])?;
        must(&["ip", "-n", &self.switch, "link", "add", "bridge", "type", "bridge"])?;
        must(&["ip", "-n", &self.switch, "link", "set", "bridge", "up"])?;
        for (at, name) in self.names.iter().enumerate() {
            must(&["ip", "netns", "add", name])?;
            let port = format!("port{at}");
            must(&[
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                &port,
                "netns",
                &self.switch,
            ])?;
            must(&["ip", "-n", &self.switch, "link", "set", &port, "master", "bridge"])?;
            must(&["ip", "-n", &self.switch, "link", "set", &port, "up"])?;
            must(&["ip", "-n", name, "address", "add", &format!("{}/24", Self::address(at)), "dev", "eth0"])?;
            must(&["ip", "-n", name, "link", "set", "eth0", "up"])?;
            must(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// Keys of the hosts and of the user, and an ssh that uses them in place of the user's own.
    fn keys(&self) -> Result<(), String> {
        for key in ["host_key", "user_key", "other_key"] {
            must(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &self.file(key)])?;
        }
        let write = |name: &str, text: String| std::fs::write(self.file(name), text).map_err(|e| e.to_string());
        let public = std::fs::read_to_string(self.file("host_key.pub")).map_err(|e| e.to_string())?;
        let known: Vec<String> =
            (0..self.names.len()).map(|i| format!("[{}]:{PORT} {public}", Self::address(i))).collect();
        write("known_hosts", known.concat())?;
        write("no_known_hosts", String::new())?;
        write(
            "passwd",
            std::fs::read_to_string("/etc/passwd").map_err(|e| e.to_string())? + "sshd:x:9822:65534::/:/bin/false\n",
        )?;
        std::fs::create_dir_all(self.file("bin")).map_err(|e| e.to_string())?;
        let ssh = Self::real_ssh()?;
        let script = format!(
            "#!/bin/sh\nexec {} -F /dev/null -o UserKnownHostsFile=\"${{TEST_KNOWN_HOSTS:-{}}}\" -o IdentitiesOnly=yes \"$@\"\n",
            ssh.display(),
            self.file("known_hosts")
        );
        write("bin/ssh", script)?;
        must(&["chmod", "+x", &self.file("bin/ssh")])
    }

    fn real_ssh() -> Result<PathBuf, String> {
        std::env::split_paths(&super::path())
            .map(|p| p.join("ssh"))
            .find(|p| p.exists())
            .ok_or("ssh is not here".into())
    }

    fn serve(&mut self, at: usize, sshd: &Path) -> Result<(), String> {
        // No HOME: what the user's shell does at a login is no part of these tests, and can wait for locks of its own.
        let config = format!(
            "Port {PORT}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nSetEnv HOME=/nowhere\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\n",
            self.file("host_key"),
            self.file("user_key.pub")
        );
        std::fs::write(self.file("sshd_config"), config).map_err(|e| e.to_string())?;
        let libraries = sshd.ancestors().nth(3).unwrap_or(Path::new("/")).join("lib/x86_64-linux-gnu");
        let more = sshd.ancestors().nth(2).unwrap_or(Path::new("/")).join("lib/x86_64-linux-gnu");
        // A mount namespace of its own comes with `ip netns exec`: sshd gets the user and the folder it insists on there.
        let script = format!(
            "mount --bind {} /etc/passwd && mount -t tmpfs tmpfs /run && mkdir -p /run/sshd && \
             exec env LD_LIBRARY_PATH={}:{} {} -D -e -f {}",
            self.file("passwd"),
            libraries.display(),
            more.display(),
            sshd.display(),
            self.file("sshd_config")
        );
        let log = std::fs::File::create(self.file(&format!("sshd{at}.log"))).map_err(|e| e.to_string())?;
        let child = Command::new("ip")
            .args(["netns", "exec", &self.names[at], "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|e| e.to_string())?;
        self.sshds.push(child);
        let ready = || {
            std::fs::read_to_string(self.file(&format!("sshd{at}.log")))
                .unwrap_or_default()
                .contains("Server listening")
        };
        for _ in 0..500 {
            if ready() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!(
            "sshd does not start: {}",
            std::fs::read_to_string(self.file(&format!("sshd{at}.log"))).unwrap_or_default()
        ))
    }

    /// A program on a host, without ssh.
    pub(crate) fn on(&self, at: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[at], program]);
        super::clean(&mut command);
        command
    }

    /// `corro run` on the first host, with `words` behind the flags for ssh.
    pub(crate) fn run_command(&self, words: &[&str]) -> Command {
        self.command("run", words)
    }

    /// Any command of `corro` that reaches hosts, the same way.
    pub(crate) fn command(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0]]).arg(super::corro());
        command.args([name, "-p", PORT, "-i", &self.file("user_key")]).args(words);
        super::clean(&mut command);
        command.env("PATH", format!("{}:{}", self.file("bin"), super::path()));
        command
    }

    pub(crate) fn known_hosts(&self, name: &str) -> String {
        self.file(name)
    }

    pub(crate) fn key(&self, name: &str) -> String {
        self.file(name)
    }

    /// Cuts the link of a host, or mends it.
    pub(crate) fn link(&self, at: usize, state: &str) {
        must(&["ip", "-n", &self.switch, "link", "set", &format!("port{at}"), state]).unwrap();
    }

    /// Slows down what a host sends, say to `100mbit`. An error if this system can't.
    pub(crate) fn slow(&self, at: usize, rate: &str) -> Result<(), String> {
        let shape =
            ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"];
        must(&[["ip", "netns", "exec", &self.names[at]].as_slice(), &shape].concat())
    }

    /// The processes of a host, beyond its sshd.
    pub(crate) fn processes(&self, at: usize) -> Vec<i32> {
        let out = Command::new("ip").args(["netns", "pids", &self.names[at]]).output().unwrap();
        let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let pids = String::from_utf8_lossy(&out.stdout).into_owned();
        let pids = pids.split_whitespace().filter_map(|p| p.parse().ok());
        pids.filter(|pid| !name(pid).is_empty() && !name(pid).starts_with("sshd")).collect()
    }

    pub(crate) fn wait_until_empty(&self, at: usize, limit: Duration) {
        let what = format!("nothing is left on {} ({:?})", Self::address(at), self.processes(at));
        wait_until(&what, limit, || self.processes(at).is_empty());
    }

    /// The host is gone from one moment to the next, with everything on it.
    pub(crate) fn crash(&mut self, at: usize) {
        // First the link: nobody can say goodbye.
        self.link(at, "down");
        let out = Command::new("ip").args(["netns", "pids", &self.names[at]]).output().unwrap();
        for pid in String::from_utf8_lossy(&out.stdout).split_whitespace().filter_map(|p| p.parse().ok()) {
            kill(pid, "KILL");
        }
    }

    /// What passes the switch while `during` runs, as raw bytes.
    pub(crate) fn capture(&self, during: impl FnOnce()) -> Vec<u8> {
        let file = self.file("capture");
        let script = "import socket,sys\ns=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,socket.htons(3))\n\
                      s.setsockopt(socket.SOL_SOCKET,33,1<<26)\ns.bind(('port0',0))\nf=open(sys.argv[1],'wb')\nprint('on',flush=True)\n\
                      while True: f.write(s.recv(1<<17)); f.flush()\n";
        let mut sniffer = Command::new("ip")
            .args(["netns", "exec", &self.switch, "python3", "-c", script, &file])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut on = [0; 2];
        std::io::Read::read_exact(sniffer.stdout.as_mut().unwrap(), &mut on).unwrap();
        during();
        sniffer.kill().unwrap();
        sniffer.wait().unwrap();
        std::fs::read(file).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for sshd in &mut self.sshds {
            kill(sshd.id() as i32, "TERM");
            wait(sshd, Duration::from_secs(5));
        }
        for name in self.names.iter().chain([&self.switch]) {
            // What a failed test left there.
            if let Ok(out) = Command::new("ip").args(["netns", "pids", name]).output() {
                for pid in String::from_utf8_lossy(&out.stdout).split_whitespace().filter_map(|p| p.parse().ok()) {
                    kill(pid, "KILL");
                }
            }
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

/// Waits until no process of the job is left.
pub(crate) fn assert_gone(mark: &str, limit: Duration) {
    wait_until(&format!("nothing of {mark} is left"), limit, || super::marked(mark).is_empty());
}
