//! The account of packets in the log.

use datapath::Datapath;

/// Says in the log what has become of the packets of a datapath, which has none any more.
pub fn log_account(what: &str, datapath: &Datapath) {
    let account = datapath.account();
    if account.came() == account.went() {
        tracing::info!("{what}: {account}");
    } else {
        tracing::warn!("{what}: {account}; {} came and {} went", account.came(), account.went());
    }
}
