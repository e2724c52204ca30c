//! Programs in C and C++, compiled against `include/` and `libcorro.so`, and run as ranks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

// The shared library is made before this test runs only because the test links to its crate.
use corro as _;

/// Seconds after which a rank counts as hung.
const HANG_LIMIT: &str = "100";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where Cargo puts the shared library: beside this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libcorro.so")
}

/// Compiles a program.
fn compile(source: &Path) -> PathBuf {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (compiler, standard) =
        if source.extension().is_some_and(|e| e == "c") { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
    let libraries = library().parent().unwrap().display().to_string();
    let mut command = Command::new(compiler);
    command
        .args([standard, "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wno-missing-field-initializers", "-Werror"])
        .arg(concat!("-DVERSION=\"", env!("CARGO_PKG_VERSION"), "\""))
        .arg(format!("-I{}/include", env!("CARGO_MANIFEST_DIR")))
        .args([source, Path::new("-o"), &program])
        .args([format!("-L{libraries}"), "-lcorro".into(), "-pthread".into(), format!("-Wl,-rpath,{libraries}")]);
    assert!(command.status().unwrap().success(), "{command:?}");
    program
}

/// Runs a program on so many ranks; what each of them wrote.
fn run(program: &Path, ranks: usize) -> Vec<String> {
    let output = |rank: usize| program.with_extension(format!("{ranks}.{rank}.out"));
    let result = corro_launch::run_local(ranks, |rank| {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", HANG_LIMIT]).arg(program);
        command.stdout(File::create(output(rank.index())).unwrap());
        command
    });
    let said = (0..ranks).map(|rank| std::fs::read_to_string(output(rank)).unwrap()).collect();
    assert_eq!(result, Ok(()), "{} on {ranks} ranks: {said:?}", program.display());
    said
}

#[test]
fn the_c_example_runs() {
    let program = compile(&root().join("examples/c/allreduce.c"));
    for ranks in [1, 2, 4] {
        for (rank, said) in run(&program, ranks).iter().enumerate() {
            let values = ranks * (ranks + 1) / 2;
            let first = ranks * (ranks - 1) / 2;
            let want = format!("rank {rank} of {ranks}: the first sum is {first}, and {values} values came\n");
            assert_eq!(*said, want);
        }
    }
}

#[test]
fn the_cpp_example_learns() {
    let program = compile(&root().join("examples/cpp/training.cpp"));
    for ranks in [1, 2, 4] {
        let said = run(&program, ranks);
        let weights: Vec<&str> = said.iter().map(|text| text.split_once(": ").unwrap().1).collect();
        assert!(weights.iter().all(|w| *w == weights[0]), "{said:?}");
    }
}

#[test]
fn every_function_does_what_the_header_says() {
    let program = compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/everything.c"));
    for ranks in [1, 2, 4] {
        for (rank, said) in run(&program, ranks).iter().enumerate() {
            assert_eq!(*said, format!("rank {rank} of {ranks}: all is well\n"));
        }
    }
}

#[test]
fn only_our_names_are_exported() {
    let names = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library()).output().unwrap();
    assert!(names.status.success());
    let names = String::from_utf8(names.stdout).unwrap();
    let exported: Vec<&str> = names.lines().filter_map(|line| line.split(' ').next()).collect();
    let header = include_str!("../include/corro.h");
    for name in &exported {
        assert!(
            name.starts_with("corro_") && header.contains(&format!(" {name}("))
                || header.contains(&format!("*{name}(")),
            "{name}"
        );
    }
    assert!(exported.len() > 30, "{exported:?}");
}

#[test]
fn the_example_in_the_documentation_is_the_one_that_runs() {
    let page = std::fs::read_to_string(root().join("docs/c-api.md")).unwrap();
    let example = std::fs::read_to_string(root().join("examples/c/allreduce.c")).unwrap();
    assert!(page.contains(&example), "docs/c-api.md shows something else than examples/c/allreduce.c");
}
