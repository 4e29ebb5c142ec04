//! Entry for fuzzing: any words as arguments of commands and of the daemon, as options of tunnels, and as files of `weir diff`. What is no sense is told; nothing
//! is done.

use std::path::PathBuf;

use packet::flow::text::NoNames;
use tunnel::config::{Config, Kind};

use super::{conntrack, datapaths, diff, explain, flows, neighbours, ports, routes, time, trace};
use crate::cli::vswitchd::options::{self, Dirs};
use crate::daemon::ranking::Question;
use crate::whatif::{expect, flow_file};

/// Reads `text`, whose words are apart by spaces, as the arguments of everything that takes some.
pub fn fuzz(text: &str) {
    let args: Vec<String> = text.split(' ').map(str::to_owned).collect();
    conntrack::fuzz(&args);
    let _ = flows::DumpOptions::parse(&args);
    let _ = trace::TraceArguments::parse(&args);
    let _ = explain::ExplainArguments::parse(&args);
    let _ = diff::DiffArguments::parse(&args);
    let _ = time::Steps::parse(&args);
    let _ = Question::parse(&args);
    for word in &args {
        let _ = routes::parse(word);
        let _ = datapaths::parse_port(word);
        let _ = (neighbours::parse_mac(word), ports::parse_hex(word));
        let _ = export::target::parse(word, Some(1));
    }
    let _ = flow_file::parse("file", text, &NoNames, false);
    let _ = expect::parse("file", text, &NoNames);
    let dirs = Dirs { run: PathBuf::from("/run"), log: PathBuf::from("/log") };
    if let Err(problem) = options::parse(&args, dirs) {
        assert!(!problem.is_empty());
    }
    if let Some((kind, rest)) = args.split_first()
        && let Ok(kind) = Kind::from_name(kind)
    {
        let options = rest.iter().filter_map(|word| word.split_once('='));
        if let Err(problems) = Config::parse(kind, options) {
            assert!(problems.iter().all(|problem| !problem.to_string().is_empty()) && !problems.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    proptest! {
        #[test]
        fn any_words_are_taken_or_refused(words in prop::collection::vec(prop_oneof![
            3 => select(vec![
                "zone=1", "mark=0x1/0xff", "labels=0x1/-1", "ct_nw_src=10.0.0.1,ct_nw_proto=6,ct_tp_src=1", "-m", "--more",
                "default=10", "zone=3,limit=5", "10.0.0.0/8", "fe80::/10", "p1,type=dummy,port_no=3", "02:00:00:00:00:01",
                "--l7", "--l7-len", "--ct-next", "new,trk", "--ct-next=trk,est", "--port=p1", "--flows=x", "--most=7", "--interval=1", "ffff", "--pidfile=x", "--unixctl", "--log-file", "-vconsole:off",
                "geneve", "vxlan", "erspan", "srv6", "bareudp", "key=flow", "remote_ip=fd00::1", "dst_port=5", "csum=true", "ttl=inherit",
                "erspan_ver=2", "erspan_dir=0", "payload_type=ip", "srv6_segs=fd00::1,fd00::2", "exts=gbp,gpe", "10.0.0.1:2055", "1000", "+5",
                "flows", "rules", "most=5", "by=bytes", "rule=br0/0:9:17", "interval=0.5",
            ]).prop_map(str::to_owned),
            1 => any::<String>(),
            1 => "[a-z_]{1,8}=[-0-9a-fx:./,]{0,20}",
        ], 0..8)) {
            super::fuzz(&words.join(" "));
        }
    }
}
