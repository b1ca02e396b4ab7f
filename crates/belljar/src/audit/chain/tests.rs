use proptest::prelude::*;

use super::*;

fn entry() -> impl Strategy<Value = Entry> {
    let text = "[ -~]{0,12}";
    (any::<u64>(), "[a-z]{1,6}", text, text, text)
        .prop_map(|(at_us, kind, run, summary, detail)| Entry { at_us, kind, run, summary, detail })
}

fn chained(entries: Vec<Entry>) -> Vec<Record> {
    let mut head = Position::BEGINNING;
    let link = |entry| {
        let record = Record::after(head, entry);
        head = record.position();
        record
    };
    entries.into_iter().map(link).collect()
}

fn verify(records: &[Record], head: Position) -> Result<(), Broken> {
    let mut walk = Walk::from(Position::BEGINNING, head.seq, Some(head));
    records.iter().try_for_each(|record| walk.step(record))?;
    walk.finish().map(drop)
}

fn chain() -> impl Strategy<Value = Vec<Record>> {
    prop::collection::vec(entry(), 2..12).prop_map(chained)
}

/// Each field of a record, changed.
const FIELDS: [&str; 8] = ["seq", "at_us", "kind", "run", "summary", "detail", "prev", "hash"];

fn tamper(record: &mut Record, field: &str) {
    match field {
        "seq" => record.seq += 1000,
        "at_us" => record.entry.at_us ^= 1,
        "kind" => record.entry.kind.push('x'),
        "run" => record.entry.run.push('x'),
        "summary" => record.entry.summary.push(' '),
        "detail" => record.entry.detail.insert(0, '\u{e9}'),
        "prev" => record.prev.0[31] ^= 1,
        "hash" => record.hash.0[0] ^= 1,
        unknown => panic!("{unknown}"),
    }
}

proptest! {
    #[test]
    fn an_untouched_chain_is_whole(records in chain()) {
        let head = records.last().unwrap().position();
        prop_assert_eq!(verify(&records, head), Ok(()));
    }

    #[test]
    fn a_changed_field_is_found_at_its_record(records in chain(), at in any::<prop::sample::Index>(), field in 0..FIELDS.len()) {
        let head = records.last().unwrap().position();
        let mut changed = records;
        let at = at.index(changed.len());
        tamper(&mut changed[at], FIELDS[field]);
        let broken = verify(&changed, head).unwrap_err();
        prop_assert_eq!(broken.seq, at as u64 + 1, "{}: {}", FIELDS[field], broken);
        if FIELDS[field] != "seq" {
            prop_assert_eq!(broken.damage, Damage::Changed);
        }
    }

    #[test]
    fn what_moves_from_one_field_to_the_next_is_found(records in chain(), at in any::<prop::sample::Index>()) {
        let head = records.last().unwrap().position();
        let mut changed = records;
        let at = at.index(changed.len());
        let entry = &mut changed[at].entry;
        let Some(last) = entry.kind.pop() else { return Ok(()) };
        entry.run.insert(0, last);
        prop_assert_eq!(verify(&changed, head).unwrap_err().seq, at as u64 + 1);
    }

    #[test]
    fn a_removed_record_is_named(records in chain(), at in any::<prop::sample::Index>()) {
        let head = records.last().unwrap().position();
        let mut left = records;
        let at = at.index(left.len());
        left.remove(at);
        let broken = verify(&left, head).unwrap_err();
        prop_assert_eq!(broken.seq, at as u64 + 1);
        let wanted = if at == left.len() { Damage::Truncated } else { Damage::Removed };
        prop_assert_eq!(broken.damage, wanted);
    }

    #[test]
    fn two_records_that_changed_places_are_found_at_the_first(
        records in chain(), one in any::<prop::sample::Index>(), other in any::<prop::sample::Index>()
    ) {
        let head = records.last().unwrap().position();
        let (one, other) = (one.index(records.len()), other.index(records.len()));
        prop_assume!(one != other);
        // As rows, with their numbers: whoever reads by number sees gaps or steps back.
        let mut rows = records.clone();
        rows.swap(one, other);
        let first = one.min(other) as u64 + 1;
        prop_assert_eq!(verify(&rows, head).unwrap_err().seq, first);
        // And with the numbers put right again.
        for (index, row) in rows.iter_mut().enumerate() {
            row.seq = index as u64 + 1;
        }
        let broken = verify(&rows, head).unwrap_err();
        prop_assert_eq!((broken.seq, broken.damage), (first, Damage::Reordered));
    }

    #[test]
    fn a_cut_end_is_found(records in chain(), left in any::<prop::sample::Index>()) {
        let head = records.last().unwrap().position();
        let left = left.index(records.len());
        let broken = verify(&records[..left], head).unwrap_err();
        prop_assert_eq!((broken.seq, broken.damage), (left as u64 + 1, Damage::Truncated));
    }

    #[test]
    fn a_record_that_was_put_in_is_found(records in chain(), at in any::<prop::sample::Index>(), foreign in entry()) {
        let head = records.last().unwrap().position();
        let at = at.index(records.len());
        let before = at.checked_sub(1).map_or(Position::BEGINNING, |one| records[one].position());
        let mut more = records;
        more.insert(at, Record::after(before, foreign));
        // The forged one fits; the one after it does not.
        prop_assert!(verify(&more, head).unwrap_err().seq <= at as u64 + 2);
    }

    #[test]
    fn a_rewritten_end_is_found_by_the_head(records in chain(), foreign in entry()) {
        let head = records.last().unwrap().position();
        let mut rewritten = records;
        rewritten.pop();
        let before = rewritten.last().unwrap().position();
        let forged = Record::after(before, foreign);
        prop_assume!(forged.hash != head.hash);
        rewritten.push(forged);
        let broken = verify(&rewritten, head).unwrap_err();
        prop_assert_eq!((broken.seq, broken.damage), (head.seq, Damage::Changed));
    }
}

#[test]
fn a_hash_is_read_as_it_is_written() {
    let record = &chained(vec![Entry {
        at_us: 1,
        kind: "start".into(),
        run: "r".into(),
        summary: "{}".into(),
        detail: "{}".into(),
    }])[0];
    assert_eq!(record.hash.to_string().parse(), Ok(record.hash));
    for wrong in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
        assert!(wrong.parse::<ChainHash>().is_err(), "{wrong}");
    }
}
