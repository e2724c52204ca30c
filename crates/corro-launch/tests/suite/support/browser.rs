//! A real browser without a window: what a page looks like to it, as text.

use std::process::Command;

use super::Folder;

/// A Chromium that is here.
pub(crate) struct Browser {
    program: &'static str,
    folder: Folder,
}

impl Browser {
    /// `None`: there is none here.
    pub(crate) fn find() -> Option<Self> {
        let works = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|said| said.status.success());
        let program = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works)?;
        Some(Self { program, folder: Folder::new("browser") })
    }

    /// What is on a page after its scripts have run for a while.
    pub(crate) fn dom(&self, url: &str) -> String {
        let profile = format!("--user-data-dir={}", self.folder.path().join("profile").display());
        let flags =
            ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000", &profile];
        let said = Command::new(self.program).args(flags).arg(url).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}
