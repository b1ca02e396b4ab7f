//! Parts of a program that evolution may not touch, marked by comments in the seed program.
//!
//! `EVOLVE-BLOCK-START` … `EVOLVE-BLOCK-END` leaves only what lies between open; `PROTECTED-START` …
//! `PROTECTED-END` closes what lies between. A candidate keeps every closed line, in order and to the
//! letter, markers among them. And since a line can be kept and yet mean nothing (inside of a string that is opened
//! above it, or under a decorator), the closed lines must also be made of the same tokens, at the same places of the tree.

use crate::syntax;

/// A pair of markers, and whether what lies between them is open.
const MARKERS: [(&str, &str, bool); 2] =
    [("EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END", true), ("PROTECTED-START", "PROTECTED-END", false)];

/// Which lines are closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    /// Runs of closed lines, as ranges of bytes. Open parts lie between them.
    closed: Vec<std::ops::Range<usize>>,
    /// Whether anything is marked at all.
    marked: bool,
}

impl Regions {
    /// Finds the regions; the error says which marker stands alone.
    pub(crate) fn of(code: &str) -> Result<Self, String> {
        let holds = |line: &str, marker: &str| {
            line.split(|one: char| !one.is_ascii_alphanumeric() && one != '-')
                .any(|word| word == marker)
        };
        let blocks =
            code.lines().any(|line| holds(line, MARKERS[0].0) || holds(line, MARKERS[0].1));
        let mut closed: Vec<std::ops::Range<usize>> = Vec::new();
        let mut inside: Option<usize> = None;
        let (mut at, mut marked) = (0, false);
        for (index, line) in code.split_inclusive('\n').enumerate() {
            let starts = MARKERS.iter().position(|(start, ..)| holds(line, start));
            let ends = MARKERS.iter().position(|(_, end, _)| holds(line, end));
            let alone = |marker: &str, other: &str| {
                Err(format!("has {marker} in line {} without its {other}", index + 1))
            };
            let marker = starts.or(ends).is_some();
            match (inside, starts, ends) {
                (_, None, None) => {}
                (None, Some(which), None) => inside = Some(which),
                (Some(now), None, Some(which)) if now == which => inside = None,
                (_, Some(which), _) => return alone(MARKERS[which].0, MARKERS[which].1),
                (_, None, Some(which)) => return alone(MARKERS[which].1, MARKERS[which].0),
            }
            marked |= marker;
            let is_open = match inside {
                _ if marker => false,
                Some(which) => MARKERS[which].2,
                None => !blocks,
            };
            let end = at + line.len();
            if !is_open {
                match closed.last_mut() {
                    Some(last) if last.end == at && !marker_ends(code, last) => last.end = end,
                    _ => closed.push(at..end),
                }
            }
            at = end;
        }
        match inside {
            Some(which) => {
                Err(format!("has {} without its {}", MARKERS[which].0, MARKERS[which].1))
            }
            None => Ok(Self { closed, marked }),
        }
    }

    /// Whether there is anything to keep.
    pub(crate) fn any(&self) -> bool {
        self.marked
    }
}

/// A run of closed lines ends at the marker that opens a block, even if the block is empty: so two
/// programs with the same closed lines have the same runs.
fn marker_ends(code: &str, run: &std::ops::Range<usize>) -> bool {
    let last = code[run.clone()].lines().last().unwrap_or_default();
    last.contains(MARKERS[0].0) || last.contains(MARKERS[1].1)
}

/// Says what a candidate changed that it may not, against the seed program.
pub(crate) fn kept(seed: &str, candidate: &str, language: &str) -> Result<(), String> {
    let wanted = Regions::of(seed)?;
    if !wanted.any() {
        return Ok(());
    }
    let found = Regions::of(candidate).map_err(|why| format!("the program {why}"))?;
    let texts = |code: &str, regions: &Regions| -> Vec<String> {
        regions
            .closed
            .iter()
            .map(|run| code[run.clone()].trim_end_matches('\n').to_owned())
            .collect()
    };
    let (before, after) = (texts(seed, &wanted), texts(candidate, &found));
    for (index, text) in before.iter().enumerate() {
        if after.get(index) != Some(text) {
            let first = text.lines().next().unwrap_or_default();
            return Err(format!(
                "a protected region was changed: the one that begins with \"{first}\""
            ));
        }
    }
    if after.len() > before.len() {
        return Err("a protected region was added: leave the markers as they are".to_owned());
    }
    let tokens = |code: &str, regions: &Regions| syntax::tokens_in(language, code, &regions.closed);
    if tokens(seed, &wanted) != tokens(candidate, &found) {
        return Err(
            "a protected region means something else now: what is around it swallows it".to_owned()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "import math\n# EVOLVE-BLOCK-START\ndef f(x):\n    return x\n# EVOLVE-BLOCK-END\ndef g(x):\n    return f(x) + 1\n";

    #[test]
    fn what_is_open_may_change_and_what_is_closed_may_not() {
        let inner = SEED.replace("return x\n", "return x * 2\n");
        assert_eq!(kept(SEED, &inner, "python"), Ok(()));
        for (from, to) in [
            ("import math", "import os"),
            ("return f(x) + 1", "return 42"),
            ("# EVOLVE-BLOCK-START\n", ""),
            ("# EVOLVE-BLOCK-END\n", "# EVOLVE-BLOCK-END\nprint(1)\n"),
            ("import math\n", ""),
        ] {
            let changed = SEED.replace(from, to);
            assert!(kept(SEED, &changed, "python").is_err(), "{changed}");
        }
    }

    #[test]
    fn a_closed_line_in_a_string_is_not_kept() {
        let opened = SEED.replace("    return x\n", "    return x\ns = '''\n")
            + "# EVOLVE-BLOCK-START\n'''\n# EVOLVE-BLOCK-END\n";
        assert!(kept(SEED, &opened, "python").is_err());
        let two = "# EVOLVE-BLOCK-START\na = 1\n# EVOLVE-BLOCK-END\ndef g():\n    pass\n# EVOLVE-BLOCK-START\nb = 1\n# EVOLVE-BLOCK-END\n";
        let swallowed = two.replace("a = 1", "a = '''").replace("b = 1", "'''");
        assert!(kept(two, &swallowed, "python").unwrap_err().contains("means something else"));
    }

    #[test]
    fn a_closed_function_is_not_taken_over_by_what_stands_above_it() {
        for taken in
            ["    return x\n@lambda _: 7\n", "    return x\nif False: pass\nelse:\n  x = (\n"]
        {
            let changed = SEED.replace("    return x\n", taken);
            let why = kept(SEED, &changed, "python").unwrap_err();
            assert!(why.contains("means something else"), "{why}");
        }
        let script = "# EVOLVE-BLOCK-START\na=1\n# EVOLVE-BLOCK-END\necho $a\n";
        assert_eq!(
            kept(script, &script.replace("a=1", "a=2\nif true; then b=1; fi"), "bash"),
            Ok(())
        );
        assert!(kept(script, &script.replace("a=1", "cat <<X\na"), "bash").is_err());
    }

    #[test]
    fn protected_parts_are_kept_and_the_rest_is_open() {
        let seed = "x = 1\n# PROTECTED-START\ny = 2\n# PROTECTED-END\nz = 3\n";
        assert_eq!(
            kept(seed, &seed.replace("x = 1", "x = 9\nw = 8").replace("z = 3", ""), "python"),
            Ok(())
        );
        assert!(
            kept(seed, &seed.replace("y = 2", "y = 3"), "python")
                .unwrap_err()
                .contains("PROTECTED-START")
        );
        assert!(kept(seed, "x = 1\n", "python").is_err());
        assert!(kept(seed, &seed.repeat(2), "python").unwrap_err().contains("added"));
    }

    #[test]
    fn a_program_without_marks_is_all_open() {
        assert_eq!(kept("x = 1\n", "", "python"), Ok(()));
    }

    #[test]
    fn a_marker_alone_is_a_mistake() {
        for (code, words) in [
            ("# EVOLVE-BLOCK-START\n", "without its EVOLVE-BLOCK-END"),
            ("x\n# PROTECTED-END\n", "line 2"),
            ("# PROTECTED-START\n# EVOLVE-BLOCK-START\n", "line 2"),
        ] {
            assert!(Regions::of(code).unwrap_err().contains(words), "{code}");
        }
    }
}
