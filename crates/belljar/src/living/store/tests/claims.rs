//! How many sandboxes, and how much disk: in all, and for each owner. Forks and imports count like any other.

use super::*;
use crate::model::limits::LimitsRequest;

fn disk() -> u64 {
    LimitsRequest::default().resolve().unwrap().disk_bytes
}

fn within(limits: SandboxLimits) -> Rig {
    let mut rig = Rig::new();
    rig.store = None;
    let config = StoreConfig { limits, ..rig.config() };
    rig.store = Some(Store::open(config).unwrap());
    rig
}

fn of(owner: Owner, name: &str) -> NewSandbox {
    NewSandbox { owner, ..new_sandbox(name) }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, words: &[&str]) {
    let told = result.unwrap_err().to_string();
    assert!(words.iter().all(|word| told.contains(word)), "{told}");
}

#[test]
fn a_server_has_so_many_sandboxes_and_promises_so_much_disk() {
    let limits =
        SandboxLimits { sandboxes: 2, disk_bytes: Some(2 * disk()), ..SandboxLimits::default() };
    let rig = within(limits);
    let store = rig.store();
    store.create(of(Owner::local(1), "one")).unwrap();
    store.create(of(Owner::local(2), "two")).unwrap();
    let words = ["this server has 2 sandboxes: at most 2 (--sandboxes)", "remove one"];
    refused(store.create(of(Owner::local(3), "three")), &words);
    store.remove("two").unwrap();
    let mut large = new_sandbox("three");
    large.request.limits.disk_bytes = Some(disk() + 1);
    let most = format!("at most {} (--sandbox-disk)", 2 * disk());
    refused(store.create(large), &[&most, "ask for less disk"]);
}

#[test]
fn an_owner_has_so_many_and_another_as_many_again() {
    let limits = SandboxLimits { owner_sandboxes: Some(2), ..SandboxLimits::default() };
    let rig = within(limits);
    let store = rig.store();
    let (ann, key) = (Owner::local(1000), Owner::key("ci"));
    store.create(of(ann.clone(), "one")).unwrap();
    // All of them or none: one would still fit.
    let two = || vec![Some(name("a")), Some(name("b"))];
    let words = ["uid 1000 has 2 sandboxes: at most 2 (--owner-sandboxes)", "remove one"];
    refused(store.fork("one", two(), Taking::Seal, &ann), &words);
    assert_eq!(store.list().len(), 1);
    store.fork("one", vec![Some(name("a"))], Taking::Seal, &ann).unwrap();
    refused(store.create(of(ann.clone(), "three")), &words);
    let mut archive = fs::File::create_new(rig.path.join("archive")).unwrap();
    store.export(&store.get("one").unwrap(), &Side::Present, &mut archive).unwrap();
    let import = |owner: &Owner, name: &str| {
        let mut archive = fs::File::open(rig.path.join("archive")).unwrap();
        store.import(of(owner.clone(), name), &mut archive, ImportLimits::default())
    };
    refused(import(&ann, "imported"), &words);
    // What another forks is on the other's account.
    assert_eq!(store.fork("one", two_of("k"), Taking::Seal, &key).unwrap()[0].owner, key);
    refused(import(&key, "imported"), &["key ci has 2 sandboxes: at most 2"]);
    store.remove("a").unwrap();
    import(&ann, "imported").unwrap();
}

fn two_of(stem: &str) -> Vec<Option<Name>> {
    [1, 2].map(|number| Some(name(&format!("{stem}-{number}")))).to_vec()
}

#[test]
fn the_disks_of_an_owner_are_bounded_together() {
    let owner_disk_bytes = Some(disk() * 5 / 2);
    let rig = within(SandboxLimits { owner_disk_bytes, ..SandboxLimits::default() });
    let store = rig.store();
    let ann = Owner::local(1000);
    store.create(of(ann.clone(), "one")).unwrap();
    let wanted = format!("with this one uid 1000 would have {} bytes of disk", 3 * disk());
    refused(store.fork("one", two_of("a"), Taking::Seal, &ann), &[&wanted, "(--owner-disk)"]);
    store.create(of(ann.clone(), "two")).unwrap();
    refused(store.create(of(ann.clone(), "three")), &[&wanted]);
    let mut small = of(ann, "three");
    small.request.limits.disk_bytes = Some(disk() / 2);
    store.create(small).unwrap();
    store.create(of(Owner::local(1001), "other")).unwrap();
}

#[test]
fn sandboxes_that_are_being_made_count() {
    let limits = SandboxLimits { owner_sandboxes: Some(3), ..SandboxLimits::default() };
    let rig = within(limits);
    let store = rig.store();
    let made = std::thread::scope(|scope| {
        let names = (0..12).map(|number| format!("n{number}"));
        let all: Vec<_> =
            names.map(|name| scope.spawn(move || store.create(new_sandbox(&name)))).collect();
        all.into_iter().map(|one| one.join().unwrap()).filter(Result::is_ok).count()
    });
    assert_eq!((made, store.list().len()), (3, 3));
    assert!(locked_claims(store).is_empty(), "a claim outlives what it was for");
}

fn locked_claims(store: &Store) -> std::sync::MutexGuard<'_, claim::Claims> {
    store.claims.lock().unwrap()
}
