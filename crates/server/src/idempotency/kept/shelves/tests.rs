use tokio::sync::oneshot;

use super::super::AnswerHead;
use super::*;

const NOW: u64 = 1_800_000_000_000_000;
const HOUR_US: u64 = 3_600_000_000;

/// A state directory that goes with the test.
struct Place(std::path::PathBuf);

impl Place {
    fn new() -> Self {
        let name = crate::front::RequestId::new().0;
        let path = std::env::temp_dir().join(format!("belljar-once-{name}"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.join("idempotency.db")
    }

    /// The files as they are now, elsewhere.
    fn crashed(&self) -> Self {
        let copy = Self::new();
        for name in ["idempotency.db", "idempotency.db-wal"] {
            std::fs::copy(self.0.join(name), copy.0.join(name)).unwrap();
        }
        let log = std::fs::metadata(copy.0.join("idempotency.db-wal")).unwrap();
        assert!(log.len() > 0, "what was written last is in the log alone");
        copy
    }

    fn open(&self, bounds: Bounds, now_us: u64) -> Shelves {
        Shelves::open(&self.file(), bounds, Arc::default(), now_us).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn claim(tenant: &str, key: u8, request: u8) -> Claim {
    let request_id = format!("req_{key}");
    Claim { tenant: tenant.to_owned(), key: [key; 32], request: [request; 32], request_id }
}

fn answer(text: &str) -> Answer {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let head = AnswerHead { status: 201, headers, problem: None };
    Answer { head, body: text.to_owned().into() }
}

fn ask(shelves: &mut Shelves, claim: Claim, now_us: u64) -> Result<Found, String> {
    let (told, mut heard) = oneshot::channel();
    shelves.carry_out(vec![Job::Claim(claim, told)], now_us);
    heard.try_recv().unwrap()
}

fn end(shelves: &mut Shelves, claim: &Claim, ending: Ending) -> Result<(), String> {
    let (told, mut heard) = oneshot::channel();
    let (tenant, key) = (claim.tenant.clone(), claim.key);
    shelves.carry_out(vec![Job::End { tenant, key, ending, told }], NOW);
    heard.try_recv().unwrap()
}

#[test]
fn what_was_claimed_is_told_after_a_crash_and_what_was_answered_is_answered_again() {
    let place = Place::new();
    let (done, lost) = (claim("t", 1, 1), claim("t", 2, 1));
    let mut shelves = place.open(Bounds::default(), NOW);
    assert_eq!(ask(&mut shelves, done.clone(), NOW), Ok(Found::Claimed));
    assert_eq!(ask(&mut shelves, lost.clone(), NOW), Ok(Found::Claimed));
    end(&mut shelves, &done, Ending::Answered(answer("made"))).unwrap();
    // As a crash leaves it: nothing is closed, and the log was never brought into the file.
    let place = place.crashed();
    drop(shelves);
    let mut shelves = place.open(Bounds::default(), NOW + 1);
    let again = ask(&mut shelves, done.clone(), NOW + 2);
    assert_eq!(again, Ok(Found::Answered(answer("made"))));
    let unknown = Found::Unknown { since_us: NOW, request_id: "req_2".to_owned() };
    for _ in 0..2 {
        assert_eq!(ask(&mut shelves, lost.clone(), NOW + 2), Ok(unknown.clone()));
    }
    assert_eq!(ask(&mut shelves, claim("t", 1, 9), NOW + 2), Ok(Found::Other));
    assert_eq!(ask(&mut shelves, claim("t", 2, 9), NOW + 2), Ok(Found::Other));
    assert_eq!(ask(&mut shelves, claim("u", 1, 9), NOW + 2), Ok(Found::Claimed), "another tenant");
}

#[test]
fn what_was_not_begun_is_forgotten_and_what_is_old_is_new_again() {
    let place = Place::new();
    let mut shelves = place.open(Bounds::default(), NOW);
    let one = claim("t", 1, 1);
    assert_eq!(ask(&mut shelves, one.clone(), NOW), Ok(Found::Claimed));
    end(&mut shelves, &one, Ending::Forgotten).unwrap();
    assert_eq!(ask(&mut shelves, one.clone(), NOW), Ok(Found::Claimed));
    end(&mut shelves, &one, Ending::Answered(answer("x"))).unwrap();
    let nearly = NOW + 24 * HOUR_US - 1;
    assert!(matches!(ask(&mut shelves, one.clone(), nearly), Ok(Found::Answered(_))));
    assert!(matches!(ask(&mut shelves, one.clone(), NOW - HOUR_US), Ok(Found::Answered(_))));
    assert_eq!(ask(&mut shelves, one.clone(), NOW + 24 * HOUR_US), Ok(Found::Claimed));
    // And nobody has to ask for it to go.
    drop(shelves);
    let shelves = place.open(Bounds::default(), NOW + 72 * HOUR_US);
    assert_eq!((shelves.tally("t"), shelves.tallies.len()), (Tally::default(), 0));
}

#[test]
fn bytes_are_bounded_by_letting_answers_go_and_their_keys_stay() {
    let place = Place::new();
    let bounds = Bounds { bytes: 1000, total_bytes: 2500, ..Bounds::default() };
    let mut shelves = place.open(bounds, NOW);
    let text = "x".repeat(300);
    for (number, tenant) in [(1, "t"), (2, "t"), (3, "t"), (4, "t"), (5, "u")] {
        let one = claim(tenant, number, 1);
        assert_eq!(ask(&mut shelves, one.clone(), NOW + u64::from(number)), Ok(Found::Claimed));
        end(&mut shelves, &one, Ending::Answered(answer(&text))).unwrap();
    }
    assert!(shelves.tally("t").bytes <= 1000, "{:?}", shelves.tallies);
    assert_eq!(ask(&mut shelves, claim("t", 1, 1), NOW), Ok(Found::LetGo), "not done again");
    assert!(matches!(ask(&mut shelves, claim("t", 4, 1), NOW), Ok(Found::Answered(_))));
    assert!(matches!(ask(&mut shelves, claim("u", 5, 1), NOW), Ok(Found::Answered(_))));
    let long = claim("t", 9, 1);
    assert_eq!(ask(&mut shelves, long.clone(), NOW), Ok(Found::Claimed));
    end(&mut shelves, &long, Ending::Answered(answer(&"x".repeat(2000)))).unwrap();
    assert_eq!(ask(&mut shelves, long, NOW), Ok(Found::LetGo));
    let before = shelves.tallies.clone();
    shelves.count_all().unwrap();
    assert_eq!(shelves.tallies, before, "counted as it is");
}

#[test]
fn many_bytes_of_one_tenant_cost_no_other_its_answers() {
    let place = Place::new();
    let bounds = Bounds { bytes: 10_000, total_bytes: 10_000, ..Bounds::default() };
    let mut shelves = place.open(bounds, NOW);
    let small = claim("small", 1, 1);
    assert_eq!(ask(&mut shelves, small.clone(), NOW), Ok(Found::Claimed));
    end(&mut shelves, &small, Ending::Answered(answer("kept"))).unwrap();
    for number in 2..40 {
        let one = claim("large", number, 1);
        assert_eq!(ask(&mut shelves, one.clone(), NOW + 1), Ok(Found::Claimed));
        end(&mut shelves, &one, Ending::Answered(answer(&"x".repeat(900)))).unwrap();
    }
    let sum: u64 = shelves.tallies.values().map(|one| one.bytes).sum();
    assert!(sum <= 10_000, "{sum}");
    assert!(matches!(ask(&mut shelves, small, NOW), Ok(Found::Answered(_))));
}

#[test]
fn keys_are_bounded_and_what_goes_on_stays() {
    let place = Place::new();
    let mut shelves = place.open(Bounds { keys: 4, ..Bounds::default() }, NOW);
    let going_on = claim("t", 1, 1);
    assert_eq!(ask(&mut shelves, going_on.clone(), NOW), Ok(Found::Claimed));
    for number in 2..20 {
        let one = claim("t", number, 1);
        assert_eq!(ask(&mut shelves, one.clone(), NOW + u64::from(number)), Ok(Found::Claimed));
        end(&mut shelves, &one, Ending::LetGo).unwrap();
        assert!(shelves.tally("t").keys <= 4, "{:?}", shelves.tallies);
    }
    assert!(matches!(ask(&mut shelves, going_on, NOW), Ok(Found::Unknown { .. })), "not let go");
}

#[test]
fn where_all_go_on_there_is_no_room() {
    let place = Place::new();
    let mut shelves = place.open(Bounds { keys: 4, ..Bounds::default() }, NOW);
    for number in 1..=4 {
        assert_eq!(ask(&mut shelves, claim("t", number, 1), NOW), Ok(Found::Claimed));
    }
    assert_eq!(ask(&mut shelves, claim("t", 5, 1), NOW), Ok(Found::Full));
    assert_eq!(ask(&mut shelves, claim("u", 5, 1), NOW), Ok(Found::Claimed), "another tenant");
    assert_eq!(shelves.tally("t").keys, 4, "nothing was claimed");
    end(&mut shelves, &claim("t", 2, 1), Ending::LetGo).unwrap();
    assert_eq!(ask(&mut shelves, claim("t", 5, 1), NOW), Ok(Found::Claimed));
    assert!(matches!(ask(&mut shelves, claim("t", 1, 1), NOW), Ok(Found::Unknown { .. })));
}

/// Refuses what is written of one tenant, as a damaged page would.
fn refuse_all_of(shelves: &Shelves, tenant: &str) {
    let text = format!(
        "CREATE TEMP TRIGGER refuses_insert BEFORE INSERT ON claims WHEN NEW.tenant = '{tenant}' \
         BEGIN SELECT RAISE(ABORT, 'refused'); END; \
         CREATE TEMP TRIGGER refuses_delete BEFORE DELETE ON claims WHEN OLD.tenant = '{tenant}' \
         BEGIN SELECT RAISE(ABORT, 'refused'); END; \
         CREATE TEMP TRIGGER refuses_update BEFORE UPDATE ON claims WHEN OLD.tenant = '{tenant}' \
         BEGIN SELECT RAISE(ABORT, 'refused'); END;"
    );
    shelves.connection.execute_batch(&text).unwrap();
}

#[test]
fn one_that_fails_costs_no_other_its_claim() {
    let place = Place::new();
    let mut shelves = place.open(Bounds::default(), NOW);
    refuse_all_of(&shelves, "bad");
    let (jobs, heard): (Vec<_>, Vec<_>) = ["t", "bad", "u"]
        .map(|tenant| {
            let (told, heard) = oneshot::channel();
            (Job::Claim(claim(tenant, 1, 1), told), heard)
        })
        .into_iter()
        .unzip();
    shelves.carry_out(jobs, NOW);
    let told: Vec<_> = heard.into_iter().map(|mut one| one.try_recv().unwrap()).collect();
    assert_eq!((&told[0], &told[2]), (&Ok(Found::Claimed), &Ok(Found::Claimed)));
    assert!(told[1].as_ref().is_err_and(|why| why.contains("refused")), "{told:?}");
    let before = shelves.tallies.clone();
    shelves.count_all().unwrap();
    assert_eq!(shelves.tallies, before, "counted as it is");
}

#[test]
fn ends_that_could_not_be_written_are_written_later() {
    let place = Place::new();
    let mut shelves = place.open(Bounds::default(), NOW);
    let (done, refused) = (claim("bad", 1, 1), claim("bad", 2, 1));
    for one in [&done, &refused] {
        assert_eq!(ask(&mut shelves, one.clone(), NOW), Ok(Found::Claimed));
    }
    refuse_all_of(&shelves, "bad");
    end(&mut shelves, &done, Ending::Answered(answer("made"))).unwrap_err();
    end(&mut shelves, &refused, Ending::Forgotten).unwrap_err();
    let told = ask(&mut shelves, refused.clone(), NOW).unwrap_err();
    assert!(told.contains("not written yet"), "{told}");
    assert_eq!(ask(&mut shelves, claim("t", 1, 1), NOW), Ok(Found::Claimed), "others go on");
    let drop_all = ["insert", "delete", "update"].map(|one| format!("DROP TRIGGER refuses_{one};"));
    shelves.connection.execute_batch(&drop_all.concat()).unwrap();
    assert_eq!(ask(&mut shelves, refused, NOW), Ok(Found::Claimed), "it was never begun");
    assert_eq!(
        ask(&mut shelves, done, NOW),
        Ok(Found::LetGo),
        "it was, and its answer is not here"
    );
    assert!(shelves.owed.is_empty());
}

#[test]
fn what_makes_room_is_found_by_an_index() {
    let place = Place::new();
    let shelves = place.open(Bounds::default(), NOW);
    for (query, index) in [
        (
            "SELECT id FROM claims WHERE tenant = 't' AND state = 1 ORDER BY since_us LIMIT 1",
            "claims_with_answers",
        ),
        ("DELETE FROM claims WHERE since_us <= 5", "claims_by_time"),
    ] {
        let mut plan = shelves.connection.prepare(&format!("EXPLAIN QUERY PLAN {query}")).unwrap();
        let rows = plan.query_map([], |row| row.get::<_, String>(3)).unwrap();
        let text: Vec<String> = rows.map(Result::unwrap).collect();
        assert!(text.iter().any(|line| line.contains(index)), "{query}: {text:?}");
        assert!(!text.iter().any(|line| line.contains("TEMP B-TREE")), "{query}: {text:?}");
    }
}

#[test]
fn a_full_disk_claims_nothing() {
    let place = Place::new();
    let mut shelves = place.open(Bounds::default(), NOW);
    let first = claim("t", 1, 1);
    assert_eq!(ask(&mut shelves, first.clone(), NOW), Ok(Found::Claimed));
    let pages: i64 =
        shelves.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    shelves.connection.pragma_update(None, "max_page_count", pages).unwrap();
    let told = end(&mut shelves, &first, Ending::Answered(answer(&"x".repeat(1 << 20))));
    assert_eq!(told, Err("no room is left on its disk".to_owned()));
    let mut refused = None;
    for number in 2..=255 {
        if let Err(why) = ask(&mut shelves, claim("t", number, 1), NOW) {
            refused = Some((number, why));
            break;
        }
    }
    let (number, why) = refused.expect("the file is full");
    assert_eq!(why, "no room is left on its disk");
    let most = shelves.tally("t").keys;
    assert_eq!(most, u64::from(number) - 1, "what failed is not counted");
    shelves.connection.pragma_update(None, "max_page_count", pages + 100).unwrap();
    assert_eq!(ask(&mut shelves, claim("t", number, 1), NOW), Ok(Found::Claimed));
    assert_eq!(ask(&mut shelves, first, NOW), Ok(Found::LetGo), "its end needed no room");
}

#[test]
fn the_file_holds_neither_key_nor_request() {
    let place = Place::new();
    let mut shelves = place.open(Bounds::default(), NOW);
    let asked: [&[u8]; 2] = [b"/v1/runs", b"a request in clear"];
    let one = Claim::new("t", "a key in clear", &asked, "req_in_clear");
    assert_eq!(ask(&mut shelves, one.clone(), NOW), Ok(Found::Claimed));
    let log = place.file().with_extension("db-wal");
    let holds = |text: &str| {
        let bytes = [place.file(), log.clone()].map(|file| std::fs::read(file).unwrap()).concat();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    assert!(holds("req_in_clear"), "what is in clear would be found");
    end(&mut shelves, &one, Ending::Answered(answer("an answer that is let go"))).unwrap();
    for kept in ["a key in clear", "a request in clear", "/v1/runs"] {
        assert!(!holds(kept), "{kept}");
    }
    assert!(holds("an answer that is let go"), "while it is kept");
    shelves.tidied_us = 0;
    shelves.tidy(NOW + 25 * HOUR_US).unwrap();
    shelves.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert!(!holds("an answer that is let go"), "and not once it is let go");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(place.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_file_of_something_else_is_not_touched() {
    let place = Place::new();
    std::fs::write(place.file(), "this is no database at all, and long enough").unwrap();
    let error = Shelves::open(&place.file(), Bounds::default(), Arc::default(), NOW).unwrap_err();
    assert!(said(&error).contains("move it away"), "{error}");
}
