//! `belljar levels` and `belljar languages`: the contracts, and what is installed.

use belljar::languages::{Language, Languages};
use belljar::{Config, Level};

use crate::args::Format;
use crate::render;

pub(crate) fn levels(format: &Format) -> u8 {
    if format.json {
        let all: Vec<_> = Level::ALL
            .iter()
            .map(|level| {
                serde_json::json!({
                    "name": level.name(),
                    "default": *level == Level::default(),
                    "summary": level.summary(),
                    "layers": level.layers(),
                })
            })
            .collect();
        return render::json(&all);
    }
    let mut text = String::new();
    for level in Level::ALL {
        let default = if level == Level::default() { " (default)" } else { "" };
        text += &format!("{}{default}\n    {}\n", level.name(), level.summary());
        text += &format!("    layers: {}\n", layer_names(level));
    }
    render::line(text.trim_end())
}

fn layer_names(level: Level) -> String {
    let names = level.layers().into_iter().map(|layer| layer.to_string());
    names.collect::<Vec<_>>().join(", ")
}

pub(crate) fn languages(format: &Format) -> u8 {
    let languages = match Languages::load(&Config::default().language_directories) {
        Ok(languages) => languages,
        Err(error) => return render::trouble(&error.to_string(), render::BAD_REQUEST),
    };
    let all: Vec<_> = languages.iter().map(describe).collect();
    if format.json {
        return render::json(&all);
    }
    for one in &all {
        let field = |key: &str| one[key].as_str().unwrap_or("").to_owned();
        let line = match one["interpreter"].as_str() {
            Some(path) => format!("{:<10} {:<24} {path}", field("name"), field("version")),
            None => format!("{:<10} {:<24} {}", field("name"), "not installed", field("fix")),
        };
        render::line(&line);
    }
    0
}

fn describe(language: &Language) -> serde_json::Value {
    match language.find() {
        Ok(found) => serde_json::json!({
            "name": language.name,
            "extensions": language.extensions,
            "interpreter": found.path,
            "prefix": found.prefix,
            "version": language.probe_version(&found),
        }),
        Err(error) => serde_json::json!({
            "name": language.name,
            "extensions": language.extensions,
            "interpreter": null,
            "fix": error.reason,
        }),
    }
}
