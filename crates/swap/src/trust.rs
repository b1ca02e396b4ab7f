//! Having programs inside believe the sandbox's authority: one bundle, named by what each of them reads.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Variables that name a file of certificates: OpenSSL and Python's ssl, requests and what uses certifi, curl, node, git, pip,
/// the tools of cloud vendors, cargo, deno, npm (which has a setting of its own that goes before node's).
pub const VARIABLES: [&str; 11] = [
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
    "npm_config_cafile",
];

/// The host's bundle with the authority behind it: hosts that are not looked into show certificates of their own.
pub fn bundle(host: &str, authority: &str) -> String {
    let gap = if host.is_empty() || host.ends_with('\n') { "" } else { "\n" };
    format!("{host}{gap}{authority}")
}

/// The word that Java's own stores are checked with: it keeps nobody out, and is not needed to read them.
const JAVA_WORD: &str = "changeit";

/// A bundle as Java reads it: a key store of version 2 ("JKS") that holds nothing but certificates.
pub fn java_store(bundle: &str) -> Vec<u8> {
    let certificates: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok).collect();
    let count = u32::try_from(certificates.len()).unwrap_or(u32::MAX);
    let mut out = Vec::new();
    out.extend(0xfeed_feed_u32.to_be_bytes());
    out.extend(2u32.to_be_bytes());
    out.extend(count.to_be_bytes());
    for (number, certificate) in (0..count).zip(&certificates) {
        out.extend(2u32.to_be_bytes()); // a certificate that is trusted
        text(&mut out, &format!("belljar-{number}"));
        out.extend(0u64.to_be_bytes()); // since when nobody asks
        text(&mut out, "X.509");
        out.extend(u32::try_from(certificate.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(certificate);
    }
    // Integrity, as the format has it: no protection against anybody.
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    let word: Vec<u8> = JAVA_WORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    digest.update(&word);
    digest.update(b"Mighty Aphrodite");
    digest.update(&out);
    out.extend_from_slice(digest.finish().as_ref());
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
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

    #[test]
    fn a_java_store_has_each_certificate_once() {
        let authority = crate::Authority::new().unwrap();
        let store = java_store(&bundle(authority.pem(), crate::Authority::new().unwrap().pem()));
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        let der = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
        assert!(store.windows(der.len()).any(|part| part == &der[..]));
        assert_eq!(java_store("").len(), 12 + 20);
    }
}
