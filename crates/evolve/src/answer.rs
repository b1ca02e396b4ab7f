//! From a proposer's words to a program: out of a fence, or by edits of the parent.

use crate::task::AnswerForm;

/// More edits than this are a rewrite.
const MAX_EDITS: usize = 64;
const SEARCH: &str = "<<<<<<< SEARCH";
const MIDDLE: &str = "=======";
const REPLACE: &str = ">>>>>>> REPLACE";

/// The program that an answer makes; the error is what the next prompt says of it.
pub(crate) fn program(
    answer: &str,
    form: AnswerForm,
    language: &str,
    parent: Option<&str>,
) -> Result<String, String> {
    if answer.trim().is_empty() {
        return Err("the answer was empty".to_owned());
    }
    let has_edits = answer.lines().any(|line| line.trim_end() == SEARCH);
    let code = match (form, parent) {
        (AnswerForm::Rewrite, _) if has_edits => {
            return Err("the answer holds edits, and the whole program is wanted".to_owned());
        }
        (AnswerForm::Edit | AnswerForm::Any, Some(parent)) if has_edits => edited(answer, parent)?,
        (_, None) if has_edits => {
            return Err("the answer holds edits, and there is no program to edit yet".to_owned());
        }
        (AnswerForm::Edit, _) => {
            return Err(format!("the answer holds no edit: each begins with {SEARCH}"));
        }
        (AnswerForm::Any | AnswerForm::Rewrite, _) => fenced(answer, language),
    };
    if code.trim().is_empty() {
        return Err("the answer holds no program".to_owned());
    }
    Ok(if code.ends_with('\n') { code } else { code + "\n" })
}

/// The program of an answer: what is fenced, if anything is. Of several fences those of the language count before
/// others, and then the longest.
fn fenced(answer: &str, language: &str) -> String {
    let mut found: Vec<(bool, String)> = Vec::new();
    let mut open: Option<(String, bool, String)> = None;
    for line in answer.lines() {
        let mark = line.trim_start();
        match &mut open {
            None if mark.starts_with("```") || mark.starts_with("~~~") => {
                let ticks: String = mark.chars().take_while(|one| "`~".contains(*one)).collect();
                let tag = mark[ticks.len()..].trim().to_lowercase();
                open = Some((ticks, is_tag(&tag, language), String::new()));
            }
            None => {}
            Some((ticks, _, _)) if mark.trim_end() == *ticks => {
                found.extend(open.take().map(|(_, own, text)| (own, text)));
            }
            Some((_, _, text)) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    // One that was not closed: the answer ended first.
    found.extend(open.map(|(_, own, text)| (own, text)));
    let best = found.into_iter().max_by_key(|(own, text)| (*own, text.len()));
    best.map_or_else(|| answer.to_owned(), |(_, text)| text)
}

fn is_tag(tag: &str, language: &str) -> bool {
    let first = tag.split_whitespace().next().unwrap_or_default();
    match language {
        "python" => ["python", "py", "python3"].contains(&first),
        "bash" => ["bash", "sh", "shell"].contains(&first),
        "node" => ["javascript", "js", "node"].contains(&first),
        other => first == other,
    }
}

/// The parent with every edit made, in order. Each must find exactly one place.
fn edited(answer: &str, parent: &str) -> Result<String, String> {
    let mut code = parent.to_owned();
    let edits = edits(answer)?;
    for (index, (search, replace)) in edits.iter().enumerate() {
        let which = index + 1;
        if search.trim().is_empty() {
            return Err(format!("edit {which} searches for nothing"));
        }
        match code.matches(search.as_str()).count() {
            1 => code = code.replacen(search.as_str(), replace, 1),
            0 => return Err(format!("edit {which} searches for text that is not in the program")),
            count => {
                return Err(format!(
                    "edit {which} searches for text that is there {count} times: search for more of it"
                ));
            }
        }
    }
    Ok(code)
}

fn edits(answer: &str) -> Result<Vec<(String, String)>, String> {
    enum At {
        Outside,
        Search,
        Replace,
    }
    let (mut found, mut at) = (Vec::new(), At::Outside);
    let (mut search, mut replace) = (String::new(), String::new());
    for line in answer.lines() {
        match (&at, line.trim_end()) {
            (At::Outside, SEARCH) => at = At::Search,
            (At::Search, MIDDLE) => at = At::Replace,
            (At::Replace, REPLACE) => {
                found.push((std::mem::take(&mut search), std::mem::take(&mut replace)));
                at = At::Outside;
            }
            (At::Search | At::Replace, SEARCH) | (At::Search, REPLACE) => {
                return Err(format!("edit {} is not whole", found.len() + 1));
            }
            (At::Outside, _) => {}
            (At::Search, _) => search = search + line + "\n",
            (At::Replace, _) => replace = replace + line + "\n",
        }
    }
    if !matches!(at, At::Outside) {
        return Err(format!("edit {} has no end: it ends with {REPLACE}", found.len() + 1));
    }
    if found.len() > MAX_EDITS {
        return Err(format!("the answer holds {} edits, more than {MAX_EDITS}", found.len()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(answer: &str, parent: Option<&str>) -> Result<String, String> {
        program(answer, AnswerForm::Any, "python", parent)
    }

    #[test]
    fn a_program_is_found_in_any_wrapping() {
        for answer in [
            "x = 1\n",
            "x = 1",
            "```python\nx = 1\n```",
            "Here it is:\n\n```py\nx = 1\n```\nIt works.",
            "```\nx = 1\n```",
            "~~~\nx = 1\n~~~",
            "````python\nx = 1\n````",
            "```python\nx = 1", // cut off
            "```sh\npip install a-very-long-name\n```\n```python\nx = 1\n```",
        ] {
            assert_eq!(any(answer, None).unwrap(), "x = 1\n", "{answer}");
        }
        assert_eq!(
            any("````python\ns = '''\n```\n'''\n````", None).unwrap(),
            "s = '''\n```\n'''\n"
        );
    }

    #[test]
    fn nothing_is_told_as_nothing() {
        for answer in ["", "  \n", "```python\n```"] {
            assert!(any(answer, None).is_err(), "{answer:?}");
        }
    }

    const PARENT: &str = "a = 1\nb = 2\nc = 1\n";

    fn edit(search: &str, replace: &str) -> String {
        format!("{SEARCH}\n{search}{MIDDLE}\n{replace}{REPLACE}\n")
    }

    #[test]
    fn edits_are_made_in_order() {
        let both = edit("b = 2\n", "b = 3\nd = 4\n") + "and\n" + &edit("d = 4\nc = 1\n", "c = 9\n");
        assert_eq!(any(&both, Some(PARENT)).unwrap(), "a = 1\nb = 3\nc = 9\n");
        assert_eq!(
            any(&format!("```\n{}```", edit("a = 1\n", "")), Some(PARENT)).unwrap(),
            "b = 2\nc = 1\n"
        );
    }

    #[test]
    fn an_edit_that_cannot_be_made_is_told_by_its_number() {
        for (answer, words) in [
            (edit("z = 0\n", ""), "edit 1 searches for text that is not"),
            (edit("b = 2\n", "b = 2\n") + &edit(" = \n", ""), "edit 2"),
            (edit("", "x\n"), "searches for nothing"),
            (format!("{SEARCH}\na = 1\n"), "no end"),
            (format!("{SEARCH}\na = 1\n{REPLACE}\n"), "not whole"),
        ] {
            let error = any(&answer, Some(PARENT)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let twice = any(&edit("x = 1\n", ""), Some("x = 1\nx = 1\n")).unwrap_err();
        assert!(twice.contains("2 times"), "{twice}");
    }

    #[test]
    fn the_form_that_the_task_wants_is_wanted() {
        let edits = edit("a = 1\n", "a = 2\n");
        let refused =
            |answer: &str, form| program(answer, form, "python", Some(PARENT)).unwrap_err();
        assert!(refused(&edits, AnswerForm::Rewrite).contains("whole program"));
        assert!(refused("x = 1", AnswerForm::Edit).contains("no edit"));
        assert!(any(&edits, None).unwrap_err().contains("no program to edit"));
    }
}
