//! `belljar screen`: a program is read, not run.

use std::path::Path;

use belljar::screen::{RuleFacts, Screener};
use belljar::{Config, Engine, Error, Finding, Screening, SpecError, SyntaxFault};

use super::run::{read_bounded, text};
use crate::args::Screen;
use crate::render;

/// Something was found that a run with --screen refuse would be refused for.
const FOUND: u8 = 1;

pub(crate) async fn screen(args: Screen) -> u8 {
    let as_json = args.json;
    match carry_out(args).await {
        Ok(code) => code,
        Err(error) if as_json => {
            render::json(&render::error_json(&error));
            render::error_code(&error)
        }
        Err(error) => render::trouble(&error.to_string(), render::error_code(&error)),
    }
}

async fn carry_out(args: Screen) -> Result<u8, Error> {
    let Some(program) = args.program.as_deref() else {
        return Ok(list(&Screener::new(&args.rules)?.rules()?, args.json));
    };
    let engine = Engine::open(Config { screen_rules: args.rules, ..Config::default() })?;
    let from_stdin = program == Path::new("-");
    let shown =
        if from_stdin { "standard input".to_owned() } else { program.display().to_string() };
    let bytes = if from_stdin {
        read_bounded(std::io::stdin())
    } else {
        std::fs::File::open(program).and_then(read_bounded)
    };
    let code = text("FILE", &shown, bytes)?;
    let language = match args.language {
        Some(name) => engine.languages().get(&name)?.name.clone(),
        None => engine.languages().detect(Some(program), &code)?.name.clone(),
    };
    if !engine.screener().reads(&language) {
        let reason = format!("\"{language}\" cannot be read: python, bash and node can");
        return Err(SpecError::new("language", reason).into());
    }
    let screening = tokio::select! {
        screening = engine.screen(&language, &shown, &code) => screening,
        () = super::interrupted() => return Err(super::cancelled(&engine).await),
    };
    let least = engine.screener().refuses_at();
    let grave = screening.findings.iter().any(|one| one.severity >= least);
    let printed = if args.json { render::json(&screening) } else { print(&screening) };
    let found = grave || !screening.syntax_errors.is_empty();
    Ok(if printed == 0 && found { FOUND } else { printed })
}

fn print(screening: &Screening) -> u8 {
    let faults = screening.syntax_errors.iter().map(fault);
    let lines: Vec<String> = faults.chain(screening.findings.iter().map(finding)).collect();
    let printed = if lines.is_empty() { 0 } else { render::line(&lines.join("\n")) };
    if let Some(why) = &screening.syntax_unchecked {
        render::trouble(&format!("the language itself was not asked: {why}"), 0);
    }
    let count = match screening.findings.len() + screening.left_out {
        0 if !screening.syntax_errors.is_empty() => "it cannot be run as it is".to_owned(),
        0 => "nothing found".to_owned(),
        1 => "1 finding".to_owned(),
        many if screening.left_out > 0 => {
            format!("{many} findings, {} of them not shown", screening.left_out)
        }
        many => format!("{many} findings"),
    };
    render::trouble(&format!("{count}: {}", screening.note), printed)
}

fn fault(one: &SyntaxFault) -> String {
    let place = [one.line, one.column].into_iter().flatten();
    let place = place.fold(one.source.clone(), |place, number| format!("{place}:{number}"));
    render::visible(&format!("{place}: syntax: {}", one.message))
}

fn finding(one: &Finding) -> String {
    let Finding { source, line, column, severity, name, reason, rule, excerpt, advice, .. } = one;
    let head = format!("{source}:{line}:{column}: {severity}: {name}: {reason} [{rule}]");
    let advice = if advice.is_empty() { String::new() } else { format!("\n    → {advice}") };
    render::visible(&format!("{head}\n    {excerpt}{advice}"))
}

fn list(rules: &[RuleFacts], as_json: bool) -> u8 {
    if as_json {
        return render::json(&rules);
    }
    let rows = rules.iter().map(|rule| {
        render::visible(&format!("{:<26} {:<7} {}", rule.id, rule.severity, rule.reason))
    });
    render::line(&rows.collect::<Vec<_>>().join("\n"))
}
