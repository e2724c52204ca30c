//! Writes the man pages into the folder given: `cargo run -p corro-launch --example man_pages docs/man`, see `make gen`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "docs/man".into());
    std::fs::create_dir_all(&folder)?;
    for (name, page) in pages()? {
        std::fs::write(Path::new(&folder).join(name), page)?;
    }
    Ok(())
}

/// The pages of `corro` and of its commands, by file name.
pub(crate) fn pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let program = corro_launch::cli::program();
    let mut pages = Vec::new();
    let commands = program.get_subcommands().filter(|c| c.get_name() != "help").cloned();
    for command in std::iter::once(program.clone()).chain(commands) {
        // As `man` knows the pages of commands' own commands.
        let name: &'static str = match command.get_name() {
            "corro" => "corro",
            sub => format!("corro-{sub}").leak(),
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(command.name(name)).manual("Corro").render(&mut page)?;
        pages.push((format!("{name}.1"), page));
    }
    Ok(pages)
}
