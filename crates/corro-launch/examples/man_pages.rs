//! Writes the man pages into the folder given: `cargo run -p corro-launch --example man_pages docs/man`, see `make gen`.
//! Pages of commands that are no more are removed.

use std::path::Path;

use clap_mangen::Man;
use corro_launch::cli::program;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "docs/man".into());
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let pages = pages()?;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name.to_string_lossy().ends_with(".1")
            && pages.iter().all(|page| Some(page.file().as_str()) != name.to_str())
        {
            std::fs::remove_file(folder.join(name))?;
        }
    }
    for page in pages {
        std::fs::write(folder.join(page.file()), page.text)?;
    }
    Ok(())
}

struct Page {
    /// As it is typed: `corro k8s run`.
    command: String,
    text: String,
}

impl Page {
    fn file(&self) -> String {
        format!("{}.1", self.command.replace(' ', "-"))
    }
}

/// The pages of `corro`, of its commands, and of their own commands.
fn pages() -> std::io::Result<Vec<Page>> {
    let program = program().mut_subcommand("help", |help| help.hide(true));
    let mut pages = Vec::new();
    add(&program, "corro", &mut pages)?;
    Ok(pages)
}

fn add(command: &clap::Command, typed: &str, pages: &mut Vec<Page>) -> std::io::Result<()> {
    // On its own, so that only this page knows it by its whole name.
    let shown = command.clone().bin_name(typed).display_name(typed.replace(' ', "-")).disable_help_subcommand(true);
    let mut text = Vec::new();
    Man::new(shown).source(concat!("corro ", env!("CARGO_PKG_VERSION"))).manual("Corro").render(&mut text)?;
    pages.push(Page { command: typed.into(), text: String::from_utf8_lossy(&text).into_owned() });
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(sub, &format!("{typed} {}", sub.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a reader sees it: without the marks of fonts, and dashes as dashes.
    fn plain(text: &str) -> String {
        ["\\fB", "\\fI", "\\fR"].iter().fold(text.replace("\\-", "-"), |text, mark| text.replace(mark, ""))
    }

    #[test]
    fn every_page_that_is_named_is_there() {
        let pages = pages().unwrap();
        let mut named = 0;
        for page in &pages {
            for name in plain(&page.text).split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
                assert!(pages.iter().any(|p| p.file() == format!("{name}.1")), "{name}(1) in {}", page.file());
                named += 1;
            }
        }
        // All but that of `corro` itself.
        assert_eq!(named, pages.len() - 1);
        for command in ["corro run", "corro k8s run", "corro slurm script", "corro timeline merge"] {
            assert!(pages.iter().any(|page| page.command == command), "{command}");
        }
    }

    #[test]
    fn the_synopsis_begins_with_what_is_typed() {
        for page in pages().unwrap() {
            let text = plain(&page.text);
            let (_, synopsis) = text.split_once(".SH SYNOPSIS\n").unwrap();
            let rest = synopsis.strip_prefix(&page.command).unwrap_or_else(|| panic!("{}: {synopsis}", page.file()));
            assert!(rest.starts_with(' '), "{}: {synopsis}", page.file());
        }
    }

    #[test]
    fn flags_of_inner_commands_are_told() {
        let pages = pages().unwrap();
        let text = |command| plain(&pages.iter().find(|page| page.command == command).unwrap().text);
        assert!(text("corro k8s run").contains("--image"));
        assert!(text("corro slurm script").contains("--partition"));
    }
}
