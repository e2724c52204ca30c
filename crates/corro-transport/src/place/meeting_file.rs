//! How ranks find rank 0 where no launcher of ours tells them: rank 0 writes a file, readable by the user only, that says
//! where the store is and what the secret is. It is there only while ranks join.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corro_core::{Deadline, Error, Result, codec, config};
use serde::{Deserialize, Serialize};

use crate::private_folder;
use crate::reminder::Reminder;
use crate::secret::{SECRET_BYTES, Secret};
use crate::store;

/// The longest file that is believed.
const MAX_BYTES: usize = 64 * 1024;

/// How long to wait before looking again for what is not there yet.
pub(super) const AGAIN: Duration = Duration::from_millis(10);
/// How long one address may be tried before everything is looked up again: it may be an old one.
pub(super) const ONE_TRY: Duration = Duration::from_secs(1);

/// What the file says.
#[derive(Serialize, Deserialize)]
pub(super) struct MeetingPoint {
    addresses: Vec<SocketAddr>,
    secret: [u8; SECRET_BYTES],
}

impl MeetingPoint {
    /// Where, and the secret.
    pub(super) fn new(addresses: Vec<SocketAddr>, secret: &Secret) -> Self {
        Self { addresses, secret: secret.to_bytes() }
    }
}

/// Where the files are. Made if it is not there, and refused if others could write to it.
pub(super) fn directory(one_host: bool) -> Result<PathBuf> {
    let chosen = config::MEET_DIR.value().map(PathBuf::from);
    let of_all_hosts = || config::foreign("HOME").map(|home| PathBuf::from(home).join(".corro").join("meet"));
    let path = match chosen {
        Some(path) => path,
        None if one_host => private_folder::of_this_host(),
        None => of_all_hosts().unwrap_or_else(private_folder::of_this_host),
    };
    private_folder::prepare(&path, "(CORRO_MEET_DIR) for ranks to meet")?;
    Ok(path)
}

/// A job's name as a file name.
pub(super) fn file_name(job: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let text: String = job.chars().map(plain).take(100).collect();
    // Two names may look the same after that.
    let tag = Secret::from_bytes([0; SECRET_BYTES]).prove("job name", &[job.as_bytes()]);
    format!("{text}-{:02x}{:02x}{:02x}{:02x}", tag[0], tag[1], tag[2], tag[3])
}

/// A file that was written; removed when dropped.
pub(super) struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes the file at `path`, whole or not at all.
pub(super) fn write(path: &Path, point: &MeetingPoint) -> Result<Written> {
    let doing = |e| Error::io(format!("telling the other ranks by {} where to meet", path.display()), e);
    // Always of the same name: what a rank 0 leaves that is killed right here, the next one takes away.
    let draft = path.with_extension("draft");
    let write = || -> std::io::Result<()> {
        let _ = std::fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(&codec::encode(point).map_err(|e| std::io::Error::other(e.to_string()))?)?;
        std::fs::rename(&draft, path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&draft);
        doing(e)
    })?;
    Ok(Written(path.to_owned()))
}

/// Waits for the file at `path`, and goes to the store it names.
pub(super) fn follow(path: &Path, tls: bool, deadline: Deadline) -> Result<(store::Client, Secret)> {
    let mut reminder = Reminder::new();
    loop {
        let tried = match read(path) {
            Ok(Some(point)) => {
                let secret = Secret::from_bytes(point.secret);
                let one_try = deadline.left().map_or(ONE_TRY, |left| left.min(ONE_TRY)).max(Duration::from_millis(1));
                match store::Client::connect(&point.addresses, &secret, tls, Deadline::after(one_try)) {
                    Ok(client) => return Ok((client, secret)),
                    Err(e) => e.to_string(),
                }
            }
            Ok(None) => "rank 0 has not written it".into(),
            Err(e) => e.to_string(),
        };
        if deadline.passed() {
            return Err(Error::io(
                format!("waiting for rank 0 to say by {} where to meet", path.display()),
                format!(
                    "{tried} within {:?}. Has rank 0 started? Ranks on several hosts must share this directory \
                     (CORRO_MEET_DIR); where they share none, start the job with `corro run`, or set CORRO_SECRET, \
                     MASTER_ADDR and MASTER_PORT on all of them",
                    deadline.granted()
                ),
            ));
        }
        if reminder.is_due() {
            tracing::warn!(
                "this process waits for rank 0 to say by {} where to meet ({tried}). CORRO_CONNECT_TIMEOUT says for how long \
                 ranks wait",
                path.display()
            );
        }
        std::thread::sleep(AGAIN);
    }
}

fn read(path: &Path) -> Result<Option<MeetingPoint>> {
    let doing = || format!("reading {}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(doing(), e)),
    };
    let owner = file.metadata().map_err(|e| Error::io(doing(), e))?.uid();
    if owner != rustix::process::getuid().as_raw() {
        return Err(Error::io(doing(), "it belongs to another user"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64).read_to_end(&mut bytes).map_err(|e| Error::io(doing(), e))?;
    parse(&bytes).map(Some)
}

/// What the bytes of such a file say.
pub(super) fn parse(bytes: &[u8]) -> Result<MeetingPoint> {
    match codec::take(bytes, MAX_BYTES)? {
        Some((point, used)) if used == bytes.len() => Ok(point),
        _ => Err(Error::Malformed("not a whole meeting file".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_user_can_read_it_and_it_goes_away() {
        let path = std::env::temp_dir().join(format!("corro-meeting-{}", std::process::id()));
        let secret = Secret::from_bytes([7; 32]);
        let written = write(&path, &MeetingPoint::new(vec!["127.0.0.1:1".parse().unwrap()], &secret)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let point = read(&path).unwrap().unwrap();
        assert_eq!((point.addresses.len(), point.secret), (1, [7; 32]));
        drop(written);
        assert!(read(&path).unwrap().is_none());
    }

    #[test]
    fn waiting_in_vain_says_what_to_do() {
        let path = std::env::temp_dir().join("corro-no-such-meeting");
        let error = follow(&path, false, Deadline::after(Duration::from_millis(30))).err().unwrap().to_string();
        assert!(error.contains("corro run") && error.contains("CORRO_SECRET"), "{error}");
    }

    #[test]
    fn job_names_become_file_names() {
        assert!(file_name("../../x y@1").starts_with("______x_y_1-"));
        assert_ne!(file_name("a/b"), file_name("a_b"));
    }
}
