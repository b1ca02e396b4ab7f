//! `belljar explain` and `belljar report`: what happened in a run, for people, programs and models.

use std::io::Write;
use std::path::Path;

use belljar::explain::Explanation;
use belljar::report::Report as Told;

use super::audit::{Trouble, find, new_file};
use crate::args::audit::{Explain, Report};
use crate::render;

pub(crate) fn explain(args: &Explain) -> u8 {
    let run = match find(args.state.as_deref(), &args.id) {
        Ok(run) => run,
        Err(trouble) => return trouble.tell(),
    };
    let explained = Explanation::of(&run);
    match (args.json, args.short) {
        (true, _) => render::json(&explained),
        (false, Some(most)) => render::line(&explained.short(most)),
        (false, None) => render::line(&explained.text()),
    }
}

pub(crate) fn report(args: &Report) -> u8 {
    let run = match find(args.state.as_deref(), &args.id) {
        Ok(run) => run,
        Err(trouble) => return trouble.tell(),
    };
    let report = Told::of(&run);
    match &args.html {
        None if args.json => render::json(&report),
        None => render::line(report.text().trim_end()),
        Some(path) if path == Path::new("-") => render::line(report.html().trim_end()),
        Some(path) => match write_page(path, &report.html()) {
            Ok(()) => render::trouble(&format!("the report is in {}", path.display()), 0),
            Err(trouble) => trouble.tell(),
        },
    }
}

fn write_page(path: &Path, page: &str) -> Result<(), Trouble> {
    let mut file = new_file(path)?;
    file.write_all(page.as_bytes()).map_err(Trouble::Output)
}
