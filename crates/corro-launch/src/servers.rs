//! Parameter servers of a job: started beside its ranks, on hosts of their own or of the ranks'.
//!
//! A server is this very program (`corro server`): no Python, no framework. It hears what it must know on its standard input
//! (the secret is on no command line), says where it listens on its standard output, and ends when its input does: it does not
//! outlive its launcher. One that is lost does not end the job: workers go on with the others, if there are any.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use corro_server::server::{Server, job_secret};
use corro_transport::Bind;
use corro_transport::secret::Secret;

use crate::job::Job;
use crate::start::{self, Local, Starter};

/// What a server says first, before where it listens.
const GREETING: &str = "corro server";
/// What a server is told where the user named no interfaces. No interface can be called that.
const ANY: &str = "/";
/// How long a server may take to go.
const GOODBYE: Duration = Duration::from_millis(500);

/// Servers that run. They end when dropped.
pub(crate) struct Servers {
    running: Vec<(String, Child)>,
}

impl Servers {
    /// Starts all servers of a job; gives where each listens, as text. `all_here`: nobody on another host will need them.
    pub(crate) fn start(job: &Job, secret: &Secret, all_here: bool) -> Result<(Self, Vec<String>)> {
        let mut servers = Self { running: Vec::new() };
        let mut answers = Vec::new();
        for host in &job.servers.hosts {
            let local = start::is_local(host)?;
            let (starter, agent): (Box<dyn Starter>, _) = if local {
                (Box::new(Local), job.agent.clone())
            } else {
                (job.remote.starter(), job.remote.agent(&job.agent))
            };
            let failed = |e: std::io::Error| Error::io(format!("starting a parameter server on {}", host.name), e);
            let mut child = starter
                .command(host, &as_server(&agent), job.start_timeout)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            let interfaces = if job.interfaces.is_empty() { ANY.to_owned() } else { job.interfaces.join(",") };
            let (tls, one_host) = (u8::from(job.tls), u8::from(all_here && local));
            let told = format!("{} {tls} {one_host} {interfaces}\n", secret.to_hex());
            let sent = child.stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(told.as_bytes()));
            let stdout = child.stdout.take();
            servers.running.push((host.name.clone(), child));
            sent.map_err(failed)?;
            let (sender, answer) = channel();
            std::thread::spawn(move || {
                let mut line = String::new();
                let _ = stdout.map(|out| BufReader::new(out).take(64 * 1024).read_line(&mut line));
                let _ = sender.send(line);
            });
            answers.push(answer);
        }
        let until = Instant::now() + job.start_timeout;
        let mut addresses = Vec::new();
        for (answer, (host, _)) in answers.into_iter().zip(&servers.running) {
            let line = answer.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_default();
            let here = line.trim().strip_prefix(GREETING).map(str::trim).filter(|text| !text.is_empty());
            let here = here.ok_or_else(|| {
                let doing = format!("starting a parameter server on {host}");
                let cause = format!(
                    "it did not say where it listens within {:?} (--start-timeout), but {line:?}. Look at what it wrote above; is the \
                     same corro installed there?",
                    job.start_timeout
                );
                Error::Io { doing, cause }
            })?;
            addresses.push(here.to_owned());
        }
        Ok((servers, addresses))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            drop(child.stdin.take());
        }
        let until = Instant::now() + GOODBYE;
        for (_, child) in &mut self.running {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command of a server, where `agent` is that of an agent.
fn as_server(agent: &[OsString]) -> Vec<OsString> {
    let mut words = agent.to_vec();
    if let Some(word) = words.iter_mut().rfind(|word| *word == "agent") {
        *word = "server".into();
    }
    words
}

/// `corro server`: serves until its standard input ends.
pub(crate) fn serve() -> Result<()> {
    let wrong = || Error::Usage("this is started by `corro run --servers`, which tells it what it must know".into());
    let mut line = String::new();
    let mut input = BufReader::new(std::io::stdin());
    (&mut input).take(4096).read_line(&mut line).map_err(|e| Error::io("reading what the launcher says", e))?;
    let [secret, tls, one_host, interfaces] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(wrong());
    };
    let secret = job_secret(&Secret::parse(secret).map_err(|_| wrong())?);
    let interfaces: Option<Vec<String>> =
        (interfaces != ANY).then(|| interfaces.split(',').map(str::to_owned).collect());
    let server = Server::start_at(&Bind::reachable(one_host == "1", interfaces.as_deref())?, &secret, tls == "1")?;
    let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    println!("{GREETING} {}", addresses.join(","));
    // Nothing more is said: this ends when the launcher goes.
    let _ = std::io::copy(&mut input, &mut std::io::sink());
    drop(server);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_started_as_an_agent_is() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(as_server(&words(&["agent", "/corro", "agent"])), words(&["agent", "/corro", "server"]));
    }
}
