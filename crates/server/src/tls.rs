//! TLS: a certificate and its key become what handshakes need.

use crate::config::TlsFiles;
use crate::error::Error;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error as TlsError, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The protocol that is spoken over TLS.
const ALPN: &[u8] = b"http/1.1";

/// What makes TLS of connections, from the files of a certificate and its key.
///
/// # Errors
/// Names the file that cannot be read or used.
pub(crate) fn acceptor(TlsFiles { cert, key }: &TlsFiles) -> Result<TlsAcceptor, Error> {
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| unreadable(cert, "certificate", &error))?;
    if chain.is_empty() {
        return Err(unreadable(cert, "certificate", &pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|error| unreadable(key, "private key", &error))?;
    let provider = Arc::new(ring::default_provider());
    let certified = CertifiedKey::from_der(chain, private, &provider).map_err(|error| {
        let (path, reason) = match error {
            TlsError::InvalidCertificate(_) => (cert, error.to_string()),
            TlsError::InconsistentKeys(_) => {
                (key, format!("it is not the key of the certificate in {}", cert.display()))
            }
            error => (key, error.to_string()),
        };
        Error::Tls { path: path.clone(), reason }
    })?;
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config =
        config.map_err(|error| Error::Config { setting: "tls", reason: error.to_string() });
    let resolver = Arc::new(SingleCertAndKey::from(certified));
    let mut config = config?.with_no_client_auth().with_cert_resolver(resolver);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn unreadable(path: &Path, wanted: &str, error: &pem::Error) -> Error {
    let reason = match error {
        pem::Error::NoItemsFound => format!("no {wanted} in it, in PEM and without a password"),
        pem::Error::Io(error) => format!("cannot read it: {error}"),
        error => format!("no {wanted} in PEM: {error}"),
    };
    Error::Tls { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertifiedKey as Made, generate_simple_self_signed};

    #[test]
    fn errors_name_the_file_and_the_reason() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("write");
            path
        };
        let make = || generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let Made { cert, signing_key } = make();
        let cert_path = write("cert.pem", &cert.pem());
        let key_path = write("key.pem", &signing_key.serialize_pem());
        let other_path = write("other.pem", &make().signing_key.serialize_pem());
        let both_path = write("both.pem", &(cert.pem() + &signing_key.serialize_pem()));
        let empty_path = write("empty.pem", "");
        let garbled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let garbled_path = write("garbled.pem", garbled);
        let missing_path = dir.path().join("missing.pem");
        let check = |cert: &Path, key: &Path, wrong: &Path, reason: &str| {
            let files = TlsFiles { cert: cert.to_owned(), key: key.to_owned() };
            let error = acceptor(&files).err().expect("an error").to_string();
            let start = format!("TLS: {}: ", wrong.display());
            assert!(error.starts_with(&start) && error.contains(reason), "{error}");
        };
        check(&missing_path, &key_path, &missing_path, "cannot read it");
        check(&cert_path, &missing_path, &missing_path, "cannot read it");
        check(&empty_path, &key_path, &empty_path, "no certificate in it");
        check(&key_path, &key_path, &key_path, "no certificate in it");
        check(&cert_path, &cert_path, &cert_path, "no private key in it");
        check(&garbled_path, &key_path, &garbled_path, "invalid peer certificate");
        check(&cert_path, &other_path, &other_path, "not the key of the certificate in");
        for (cert, key) in [(&cert_path, &key_path), (&both_path, &both_path)] {
            let files = TlsFiles { cert: cert.clone(), key: key.clone() };
            assert_eq!(acceptor(&files).expect("right files").config().alpn_protocols, [ALPN]);
        }
    }
}
