//! TLS: a certificate and its key become what handshakes need, and are reloaded when they change.

use crate::config::TlsFiles;
use crate::error::Error;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, ServerConfig};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;

/// The protocol that is spoken over TLS.
const ALPN: &[u8] = b"http/1.1";

/// TLS for connections, with a certificate that may be renewed.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    certificate: Arc<Certificate>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Wraps connections in TLS, with the files of a certificate and its key.
    ///
    /// # Errors
    /// Names the file that cannot be read or used.
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        // Before the files are read: what is written during that is read again.
        let stamp = stamp(files);
        let certificate = Arc::new(Certificate {
            current: RwLock::new(Arc::new(certified(files, &provider)?)),
            stamp: Mutex::new(stamp),
            files: files.clone(),
            provider: provider.clone(),
        });
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config =
            config.map_err(|error| Error::Config { setting: "tls", reason: error.to_string() });
        let mut config = config?.with_no_client_auth().with_cert_resolver(certificate.clone());
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }

    /// How often [`Self::renew`] is due.
    pub(crate) fn renewal(&self) -> Duration {
        self.certificate.files.renewal
    }

    /// Takes a new certificate for later connections, if the files changed and can be used.
    pub(crate) fn renew(&self) {
        let Certificate { files, provider, current, stamp: last } = &*self.certificate;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(files);
        if *last == now {
            return;
        }
        *last = now;
        match certified(files, provider) {
            Ok(new) => {
                *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                tracing::info!("reloaded {}", files.cert.display());
            }
            Err(error) => {
                tracing::warn!("{error}; the previous certificate stays in use");
            }
        }
    }
}

/// A certificate with its key, and the files that they are read from.
#[derive(Debug)]
struct Certificate {
    files: TlsFiles,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<CertifiedKey>>,
    /// Of the files when they were read last.
    stamp: Mutex<Stamp>,
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// When files were written, and their lengths; `None` if their metadata cannot be read.
type Stamp = [Option<(SystemTime, u64)>; 2];

fn stamp(files: &TlsFiles) -> Stamp {
    [&files.cert, &files.key].map(|path| {
        let data = path.metadata().ok()?;
        Some((data.modified().ok()?, data.len()))
    })
}

/// The certificate and the key of files.
fn certified(files: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let TlsFiles { cert, key, .. } = files;
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| unreadable(cert, "certificate", &error))?;
    if chain.is_empty() {
        return Err(unreadable(cert, "certificate", &pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|error| unreadable(key, "private key", &error))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| {
        let (path, reason) = match error {
            TlsError::InvalidCertificate(_) => (cert, error.to_string()),
            TlsError::InconsistentKeys(_) => {
                (key, format!("it is not the key of the certificate in {}", cert.display()))
            }
            error => (key, error.to_string()),
        };
        Error::Tls { path: path.clone(), reason }
    })
}

fn unreadable(path: &Path, wanted: &str, error: &pem::Error) -> Error {
    let reason = match error {
        pem::Error::NoItemsFound => format!("expected an unencrypted {wanted} in PEM, found none"),
        pem::Error::Io(error) => format!("cannot read it: {error}"),
        error => format!("not a {wanted} in PEM: {error}"),
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
            let error = Tls::new(&TlsFiles::new(cert, key)).expect_err("an error").to_string();
            let start = format!("TLS: {}: ", wrong.display());
            assert!(error.starts_with(&start) && error.contains(reason), "{error}");
        };
        check(&missing_path, &key_path, &missing_path, "cannot read it");
        check(&cert_path, &missing_path, &missing_path, "cannot read it");
        check(&empty_path, &key_path, &empty_path, "expected an unencrypted certificate in PEM");
        check(&key_path, &key_path, &key_path, "expected an unencrypted certificate in PEM");
        check(&cert_path, &cert_path, &cert_path, "expected an unencrypted private key in PEM");
        check(&garbled_path, &key_path, &garbled_path, "invalid peer certificate");
        check(&cert_path, &other_path, &other_path, "not the key of the certificate in");
        for (cert, key) in [(&cert_path, &key_path), (&both_path, &both_path)] {
            let tls = Tls::new(&TlsFiles::new(cert, key)).expect("right files");
            assert_eq!(tls.acceptor.config().alpn_protocols, [ALPN]);
        }
    }

    #[test]
    fn files_that_changed_are_read_again_and_bad_ones_are_not_taken() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (cert_path, key_path) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        // Names of different lengths make files of different lengths, whatever the clock says.
        let write = |name: &str| {
            let made = generate_simple_self_signed([name.to_owned()]).expect("a certificate");
            std::fs::write(&cert_path, made.cert.pem()).expect("write");
            (made.cert.der().clone(), made.signing_key.serialize_pem())
        };
        let (first, key) = write("a.example");
        std::fs::write(&key_path, key).expect("write");
        let tls = Tls::new(&TlsFiles::new(&cert_path, &key_path)).expect("right files");
        let current = || tls.certificate.current.read().expect("the lock").cert[0].clone();
        tls.renew();
        assert_eq!(current(), first);
        let (second, key) = write("a-longer-name.example");
        tls.renew();
        assert_eq!(current(), first, "the key is that of the first one");
        std::fs::write(&key_path, format!("{key}\n")).expect("write");
        tls.renew();
        assert_eq!(current(), second);
        std::fs::remove_file(&cert_path).expect("remove");
        tls.renew();
        assert_eq!(current(), second);
    }
}
