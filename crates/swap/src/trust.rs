//! Having programs inside believe the sandbox's authority: one bundle, named by what each of them reads.

/// Variables that name a file of certificates: OpenSSL and Python's ssl, requests and what uses certifi, curl, node, git, pip,
/// the tools of cloud vendors, cargo, deno.
pub const VARIABLES: [&str; 10] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "NIX_SSL_CERT_FILE",
];

/// The host's bundle with the authority behind it: hosts that are not looked into show certificates of their own.
pub fn bundle(host: &str, authority: &str) -> String {
    let gap = if host.is_empty() || host.ends_with('\n') { "" } else { "\n" };
    format!("{host}{gap}{authority}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_both_each_on_its_own_lines() {
        assert_eq!(bundle("A", "B\n"), "A\nB\n");
        assert_eq!(bundle("A\n", "B\n"), "A\nB\n");
        assert_eq!(bundle("", "B\n"), "B\n");
    }
}
