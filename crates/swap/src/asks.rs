//! What a request may be taken for: some servers heed headers that name another method, or another path, than its first line.

/// Another method, for clients that can send but a few.
const METHODS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// Another path, from a server in front that has changed it.
const PATHS: [&str; 2] = ["x-original-url", "x-rewrite-url"];
/// Of such headers; nobody needs more.
const MOST: usize = 4;

/// Every method and path that a server might take it for, each of which must be allowed; `None` when there are too many.
pub fn asks<'a>(
    method: &str,
    path: &str,
    headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<Vec<(String, String)>> {
    let (mut methods, mut paths) = (vec![method.to_owned()], vec![path.to_owned()]);
    for (name, value) in headers {
        // Where programs are given headers as variables, both are the same.
        let name = name.to_ascii_lowercase().replace('_', "-");
        if METHODS.contains(&name.as_str()) {
            methods.push(value.trim().to_ascii_uppercase());
        } else if PATHS.contains(&name.as_str()) {
            paths.push(value.trim().to_owned());
        }
    }
    if methods.len() + paths.len() > MOST + 2 {
        return None;
    }
    let with = |method: &String| -> Vec<(String, String)> {
        paths.iter().map(|path| (method.clone(), path.clone())).collect()
    };
    Some(methods.iter().flat_map(with).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_name_another_method_or_path_count() {
        let of =
            |headers: &[(&'static str, &'static str)]| asks("GET", "/a", headers.iter().copied());
        let pair = |method: &str, path: &str| (method.to_owned(), path.to_owned());
        assert_eq!(of(&[("Accept", "PUT")]), Some(vec![pair("GET", "/a")]));
        let found = of(&[("X-HTTP-Method-Override", " put "), ("x_original_url", "/b")]);
        let all = vec![pair("GET", "/a"), pair("GET", "/b"), pair("PUT", "/a"), pair("PUT", "/b")];
        assert_eq!(found, Some(all));
        assert_eq!(of(&[("X-HTTP-Method", "PUT"); 5]), None);
    }
}
