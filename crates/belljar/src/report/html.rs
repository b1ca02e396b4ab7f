//! The report as a page. Everything goes through the template's own escaping, after what is unseen was
//! written out; a policy in the page forbids scripts and everything from elsewhere, should any of it fail.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Report;
use crate::model::event::{Event, Severity};
use crate::model::wording::report as words;
use crate::visible::{visible, visible_line};

/// No script at all, styles only from this page.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = include_str!("style.css");

pub(super) fn page(report: &Report) -> String {
    let [risk, reasons, recommendations, events, run, receipt, program, output] = words::HEADINGS;
    let grade = report.risk.map_or("none", |risk| risk.name());
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { (words::TITLE) " " (line(&report.execution_id)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    p.kicker { (words::TITLE) }
                    h1 { (line(&report.execution_id)) }
                    div.verdict {
                        div class={ "badge " (grade) } { span { (risk) } strong { (grade) } }
                        p { (line(&report.ended)) }
                    }
                }
                main {
                    (section(reasons, &list(&report.reasons, words::NO_REASONS)))
                    (section(recommendations, &list(&report.recommendations, words::NOTHING_TO_DO)))
                    (section(events, &event_list(&report.events)))
                    (section(run, &facts(report)))
                    (section(receipt, &layers(report)))
                    @if let Some(code) = &report.code {
                        (section(program, &html! { pre { (visible(code)) } }))
                    }
                    @if !report.output.is_empty() {
                        (section(output, &html! {
                            @for (name, text) in &report.output { h3 { (name) } pre { (visible(text)) } }
                        }))
                    }
                }
            }
        }
    };
    markup.into_string()
}

fn line(text: &str) -> String {
    visible_line(text)
}

fn section(title: &str, body: &Markup) -> Markup {
    html! { section { h2 { (title) } (body) } }
}

fn list(items: &[String], nothing: &str) -> Markup {
    html! {
        @if items.is_empty() { p.quiet { (nothing) } }
        @else { ul { @for item in items { li { (line(item)) } } } }
    }
}

fn event_list(events: &[Event]) -> Markup {
    html! {
        @if events.is_empty() { p.quiet { (words::NOTHING_REFUSED) } }
        @for event in events {
            article class={ "event " (grade(event.severity)) } {
                p.what {
                    span class={ "tag " (grade(event.severity)) } { (event.severity.name()) }
                    strong { (event.kind.name().replace('_', " ")) (words::times(event.count)) }
                    time { (line(&event.time)) }
                }
                p.detail { code { (line(&event.detail)) } }
                dl {
                    @if let Some(process) = &event.process {
                        dt { "process" } dd { code { (process.pid) " " (line(&process.command)) } }
                    }
                    dt { "rule" } dd { (line(&event.rule)) }
                    dt { "to allow it" } dd { (line(&event.fix)) }
                }
            }
        }
    }
}

fn grade(severity: Severity) -> &'static str {
    severity.name()
}

fn facts(report: &Report) -> Markup {
    html! {
        table { @for (name, value) in report.facts() {
            tr { th scope="row" { (name) } td { (line(&value)) } }
        } }
    }
}

fn layers(report: &Report) -> Markup {
    let Some(receipt) = &report.receipt else {
        return html! { p.quiet { "None: the program did not run to an end that we know." } };
    };
    html! {
        p { "Level " strong { (receipt.level) } ", each layer as it was read back before the program was released." }
        table.layers {
            @for layer in &receipt.layers {
                tr {
                    td.mark { (if layer.verified { "✓" } else { "✗" }) }
                    th scope="row" { (layer.name) }
                    td { (line(&layer.mechanism)) }
                }
            }
            @for one in &receipt.missing {
                tr.missing { td.mark { "–" } th scope="row" { (one.name) } td { (line(&one.stand_in)) } }
            }
        }
        p.quiet {
            "belljar " (line(&receipt.versions.belljar)) " · Linux " (line(&receipt.versions.kernel))
            " · " (line(&receipt.versions.interpreter))
        }
    }
}
