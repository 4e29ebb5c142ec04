//! TLS against a real ovsdb-server.

mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Server, block_on, config, run};
use ovsdb::{Client, Event, Reason, Remote};
use tempfile::TempDir;
use tls::{Ca, Settings, Tls};

struct Pki(TempDir);

impl Pki {
    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, args: &str) {
        run(Command::new("openssl").args(args.split(' ')).current_dir(self.0.path()).stderr(Stdio::null()));
    }

    /// Two CAs, a server's and a client's certificate of the first. No certificate names a host, as with
    /// Open vSwitch's own PKI.
    fn new() -> Pki {
        let pki = Pki(TempDir::new().unwrap());
        for ca in ["ca", "other"] {
            pki.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={ca} \
                 -keyout {ca}.key -out {ca}.pem"
            ));
        }
        std::fs::write(pki.file("v3"), "basicConstraints=CA:FALSE\n").unwrap();
        for name in ["server", "client"] {
            pki.openssl(&format!(
                "req -newkey rsa:2048 -nodes -subj /CN=weir-{name} -keyout {name}.key -out {name}.csr"
            ));
            pki.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile v3 -out {name}.pem"
            ));
        }
        pki
    }

    fn client(&self, ca: &str) -> Settings {
        Settings {
            private_key: Some(self.file("client.key")),
            certificate: Some(self.file("client.pem")),
            ca: Some(Ca::File(self.file(ca))),
            ..Settings::default()
        }
    }
}

fn with_tls(pki: &Pki) -> (Server, Remote) {
    let server = Server::start_with(&[
        "--remote=pssl:0:127.0.0.1",
        &format!("--private-key={}", pki.file("server.key").display()),
        &format!("--certificate={}", pki.file("server.pem").display()),
        &format!("--ca-cert={}", pki.file("ca.pem").display()),
    ]);
    let log = std::fs::read_to_string(server.path("log")).unwrap();
    let port = log.lines().find_map(|l| l.split_once("listening on port ")).map(|(_, p)| p.trim().to_owned()).unwrap();
    let remote = format!("ssl:127.0.0.1:{port}").parse().unwrap();
    (server, remote)
}

fn first_event(remote: &Remote, tls: Settings) -> Event {
    block_on(async { Client::new(config(), vec![remote.clone()], Tls::new(tls)).next().await })
}

#[test]
fn tls_with_certificates_of_both_sides() {
    testing::tools(&["openssl"]);
    let pki = Pki::new();
    let (server, remote) = with_tls(&pki);
    server.vsctl(&["add-br", "br0"]);
    block_on(async {
        let mut client = Client::new(config(), vec![remote.clone()], Tls::new(pki.client("ca.pem")));
        let Event::Synced(changes) = client.next().await else { panic!("not synchronized") };
        assert_eq!(changes.table("Bridge").count(), 1);
        let mut txn = ovsdb::Transaction::new();
        // More than one record of TLS.
        txn.comment(&"c".repeat(100_000));
        common::finish(&mut client, &txn).await.0.unwrap();
    });

    let refused = |tls| match first_event(&remote, tls) {
        Event::Disconnected(Reason::Connect(text)) => text,
        event => panic!("{event:?}"),
    };
    let text = refused(pki.client("other.pem"));
    assert!(text.contains("certificate"), "{text}");
    let text = refused(Settings::default());
    assert!(text.contains("TLS needs a private key"), "{text}");
    let text = refused(pki.client("nothing.pem"));
    assert!(text.contains("nothing.pem"), "{text}");
    let text = refused(pki.client("v3"));
    assert!(text.contains("v3: no certificate in PEM"), "{text}");
    let swapped = Settings { private_key: Some(pki.file("ca.key")), ..pki.client("ca.pem") };
    let text = refused(swapped);
    assert!(text.contains("ca.key: it is not the key of "), "{text}");
}
