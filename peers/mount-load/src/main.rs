// SPDX-License-Identifier: Apache-2.0
//! Mount load: mdtest's easy and hard phases on a directory, from several processes at once.
//!
//! usage: mount-load DIR easy|hard [--processes P] [--files N] [--drop]
//!
//! `easy`: empty files, a directory for each process. `hard`: one directory for all, 3901 bytes a
//! file, written with one call and read back whole. N files a process. Each phase starts in all
//! processes at once and ends with the last; `--drop` lets the kernel forget names and attributes
//! (and for `hard` pages) before each phase but the first, as mdtest does by moving to other nodes.
//! Prints one JSON object: phase → operations a second, of all processes together.
//!
//! Processes are this program started again: it says "ready", waits for a line, works, says "done".

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a file in mdtest's hard phases.
const HARD_BYTES: usize = 3901;

fn phases(hard: bool) -> &'static [&'static str] {
    if hard { &["create", "stat", "read", "unlink"] } else { &["create", "stat", "unlink"] }
}

fn path_of(dir: &Path, hard: bool, process: usize, file: usize) -> PathBuf {
    let name = format!("file.mdtest.{process}.{file}");
    if hard { dir.join(name) } else { dir.join(format!("unique.{process}")).join(name) }
}

fn run_phase(phase: &str, paths: &[PathBuf], hard: bool) -> std::io::Result<()> {
    let bytes = [0x5a; HARD_BYTES];
    let mut buffer = [0; HARD_BYTES + 1];
    for path in paths {
        match phase {
            "create" => {
                let mut file = File::create(path)?;
                if hard {
                    file.write_all(&bytes)?;
                }
            }
            "stat" => {
                let length = fs::symlink_metadata(path)?.len();
                assert_eq!(length, if hard { HARD_BYTES as u64 } else { 0 }, "{}", path.display());
            }
            "read" => {
                let count = File::open(path)?.read(&mut buffer)?;
                assert_eq!(&buffer[..count], &bytes, "{}", path.display());
            }
            _ => fs::remove_file(path)?,
        }
    }
    Ok(())
}

fn child(dir: &Path, hard: bool, process: usize, files: usize) -> std::io::Result<()> {
    // Names are generated before the clock starts.
    let paths: Vec<PathBuf> = (0..files).map(|file| path_of(dir, hard, process, file)).collect();
    let mut lines = std::io::stdin().lock().lines();
    println!("ready");
    while let Some(phase) = lines.next().transpose()? {
        run_phase(&phase, &paths, hard)?;
        println!("done");
    }
    Ok(())
}

struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(arguments: &[String], process: usize) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .args(arguments)
            .args(["--child", &process.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let orders = child.stdin.take().expect("it was piped");
        let answers = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut worker = Self { child, orders, answers };
        worker.wait("ready");
        worker
    }

    fn wait(&mut self, expected: &str) {
        let mut line = String::new();
        let _ = self.answers.read_line(&mut line);
        assert_eq!(line.trim(), expected, "a process failed");
    }
}

/// Makes the kernel drop cached state of files, and waits until file systems have noticed.
fn drop_caches() {
    std::thread::sleep(Duration::from_millis(300));
    for level in ["1", "2"] {
        fs::write("/proc/sys/vm/drop_caches", level).expect("--drop takes the superuser");
    }
    std::thread::sleep(Duration::from_millis(700));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |option: &str| {
        let place = arguments.iter().position(|argument| argument == option)?;
        arguments.get(place + 1)?.parse::<usize>().ok()
    };
    let usage = "usage: mount-load DIR easy|hard [--processes P] [--files N] [--drop]";
    let (Some(dir), Some(shape)) = (arguments.first(), arguments.get(1)) else { panic!("{usage}") };
    let dir = Path::new(dir);
    let hard = match shape.as_str() {
        "easy" => false,
        "hard" => true,
        _ => panic!("{usage}"),
    };
    let files = value("--files").unwrap_or(10_000);
    if let Some(process) = value("--child") {
        return child(dir, hard, process, files).expect("the file system works");
    }
    let processes = value("--processes").unwrap_or(1);
    fs::create_dir_all(dir).expect("the directory can be made");
    if !hard {
        for process in 0..processes {
            fs::create_dir(dir.join(format!("unique.{process}"))).expect("a directory");
        }
    }
    let mut workers: Vec<Worker> =
        (0..processes).map(|process| Worker::start(&arguments, process)).collect();
    let mut rates = Vec::new();
    for (number, phase) in phases(hard).iter().enumerate() {
        if number > 0 && arguments.iter().any(|argument| argument == "--drop") {
            drop_caches();
        }
        let start = Instant::now();
        for worker in &mut workers {
            writeln!(worker.orders, "{phase}").expect("the process waits");
        }
        for worker in &mut workers {
            worker.wait("done");
        }
        let rate = (files * processes) as f64 / start.elapsed().as_secs_f64();
        rates.push(format!("\"{phase}\": {rate:.0}"));
    }
    for mut worker in workers {
        drop(worker.orders);
        worker.child.wait().expect("the process ends");
    }
    if !hard {
        for process in 0..processes {
            fs::remove_dir(dir.join(format!("unique.{process}"))).expect("it is empty");
        }
    }
    println!("{{{}}}", rates.join(", "));
}
