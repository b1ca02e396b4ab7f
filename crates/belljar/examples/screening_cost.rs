//! What screening costs: `cargo run --profile fast -p belljar --example screening_cost -- FILE…`
//!
//! The first text of a language also pays for its rules, once for each process; the rest is what each run pays.

use std::path::Path;
use std::time::Instant;

use belljar::screen::Screener;

/// Enough for a steady median.
const TIMES: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let screener = Screener::new(&[])?;
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let language = match Path::new(&path).extension().and_then(|one| one.to_str()) {
            Some("sh" | "bash") => "bash",
            Some("js" | "mjs" | "cjs") => "node",
            _ => "python",
        };
        let time = || {
            let begun = Instant::now();
            let found = screener.screen(language, &path, &text).findings.len();
            (begun.elapsed(), found)
        };
        let (first, found) = time();
        let mut rest: Vec<_> = (0..TIMES).map(|_| time().0).collect();
        rest.sort();
        let (lines, median) = (text.lines().count(), rest[TIMES / 2]);
        write(&format!(
            "{path}: {lines} lines, {found} findings, first {first:?}, then {median:?}\n"
        ))?;
    }
    Ok(())
}

fn write(line: &str) -> std::io::Result<()> {
    std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes())
}
