use std::os::unix::fs::PermissionsExt;

use super::*;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("belljar-store-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn store(&self) -> SecretStore {
        SecretStore::in_state(&self.0)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn secret(text: &str) -> Secret {
    Secret::for_program(text.as_bytes().to_vec()).unwrap()
}

fn values(store: &SecretStore, name: &str) -> Vec<String> {
    let kept = store.get(name).unwrap().unwrap_or_default();
    kept.iter().map(|one| one.reveal().to_owned()).collect()
}

#[test]
fn values_are_kept_encrypted_and_old_ones_for_a_while() {
    let place = Place::new("kept");
    let store = place.store();
    assert_eq!((store.list().unwrap().len(), store.get("a").unwrap().is_none()), (0, true));
    for round in 0..6 {
        store.set("a", secret(&format!("value-of-round-{round}"))).unwrap();
    }
    store.set("a", secret("value-of-round-5")).unwrap();
    store.set("b", secret("line one\nline two")).unwrap();
    let told = ["value-of-round-5", "value-of-round-4", "value-of-round-3", "value-of-round-2"];
    assert_eq!(values(&store, "a"), told);
    assert_eq!(values(&store, "b"), ["line one\nline two"]);
    let text = place.text(FILE);
    assert!(
        text.contains("\"a\"") && !text.contains("value-of") && !text.contains("dmFsdWUtb2Yt"),
        "{text}"
    );
    for name in [FILE, "secrets.key", LOCK] {
        let mode = fs::metadata(place.0.join(name)).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    assert_eq!((store.remove("a").unwrap(), store.remove("a").unwrap()), (true, false));
    let names: Vec<String> = store.list().unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["b"]);
    assert!(store.set("no such/name", secret("abcdefgh")).unwrap_err().contains("a name is"));
}

#[test]
fn a_value_cannot_be_put_in_the_place_of_another_nor_changed() {
    let place = Place::new("bound");
    let store = place.store();
    store.set("a", secret("value-of-a")).unwrap();
    store.set("b", secret("value-of-b")).unwrap();
    let mut contents: Contents = serde_json::from_str(&place.text(FILE)).unwrap();
    let of_a = contents.secrets["a"].values[0].clone();
    contents.secrets.get_mut("b").unwrap().values[0] = of_a;
    store.write(&contents).unwrap();
    assert!(store.get("b").unwrap_err().contains("damaged"), "another's");
    let sealed = &mut contents.secrets.get_mut("a").unwrap().values[0];
    let changed = if sealed.ends_with('A') { "B" } else { "A" };
    sealed.replace_range(sealed.len() - 9..sealed.len() - 8, changed);
    store.write(&contents).unwrap();
    assert!(store.get("a").unwrap_err().contains("damaged"), "changed");
}

#[test]
fn without_its_key_nothing_is_told_and_no_new_key_is_made() {
    let place = Place::new("key");
    let store = place.store();
    store.set("a", secret("value-of-a")).unwrap();
    let (key, aside) = (place.0.join("secrets.key"), place.0.join("aside"));
    fs::rename(&key, &aside).unwrap();
    for error in [store.get("a").unwrap_err(), store.set("b", secret("value-of-b")).unwrap_err()] {
        assert!(error.contains("put it back"), "{error}");
    }
    assert!(!key.exists() && store.list().unwrap().len() == 1);
    fs::write(&key, "00".repeat(32)).unwrap();
    fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(store.get("a").unwrap_err().contains("not the key"));
    fs::rename(&aside, &key).unwrap();
    fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    assert!(store.get("a").unwrap_err().contains("chmod 600"));
    fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(values(&store, "a"), ["value-of-a"]);
}

#[test]
fn what_a_crash_left_half_written_is_not_seen() {
    let place = Place::new("crash");
    let store = place.store();
    store.set("a", secret("value-of-a")).unwrap();
    fs::write(place.0.join(DRAFT), "{\"version\": 1, \"half").unwrap();
    assert_eq!(values(&store, "a"), ["value-of-a"]);
    store.set("b", secret("value-of-b")).unwrap();
    assert_eq!(values(&store, "b"), ["value-of-b"]);
    assert!(!place.0.join(DRAFT).exists());
    fs::write(place.0.join(FILE), "{\"version\": 1, \"half").unwrap();
    assert!(store.list().unwrap_err().contains("damaged"));
}

#[test]
fn there_is_an_end_to_how_many_are_kept() {
    let place = Place::new("most");
    let store = place.store();
    store.set("a", secret("value-of-a")).unwrap();
    let mut contents: Contents = serde_json::from_str(&place.text(FILE)).unwrap();
    for number in 1..MOST_NAMES {
        contents.secrets.insert(format!("n{number}"), Entry { set_ms: 0, values: Vec::new() });
    }
    store.write(&contents).unwrap();
    assert!(store.set("one-more", secret("value")).unwrap_err().contains("1000 secrets"));
    store.set("a", secret("another")).unwrap();
}
