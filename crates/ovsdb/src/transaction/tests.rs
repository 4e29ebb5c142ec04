use super::*;

fn schema() -> DatabaseSchema {
    DatabaseSchema::parse(&json!({"name": "D", "tables": {"T": {"columns": {
        "name": {"type": "string"},
        "set": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
        "map": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
    }}}}))
    .unwrap()
}

#[test]
fn operations_as_rfc_7047_writes_them() {
    let mut txn = Transaction::new();
    let row = txn.insert("T", values([("name", "a".into()), ("unknown", 1.into())]));
    txn.update("T", Uuid(1), values([("set", Datum::set([2, 1]))]))
        .mutate("T", Where::equal("name", "a").and("set", Function::Includes, 1), "set", Mutator::Insert, 3)
        .set_key("T", Uuid(1), "map", "k", "v")
        .wait("T", Where::all(), values([("name", "b".into())]), false, 100)
        .comment("why")
        .assert_lock("l")
        .delete("T", Where::equal("_uuid", &row))
        .select("T", Where::all(), &["name", "unknown", "_uuid"])
        .mutate("T", Where::all(), "unknown", Mutator::Add, 3);
    let (params, _) = txn.encode(&schema(), Some("mine"));
    let by_uuid = json!([["_uuid", "==", ["uuid", "00000000-0000-0000-0000-000000000001"]]]);
    assert_eq!(
        params,
        json!([
            "D",
            {"op": "assert", "lock": "mine"},
            {"op": "insert", "table": "T", "uuid-name": "row0", "row": {"name": "a"}},
            {"op": "update", "table": "T", "where": by_uuid, "row": {"set": ["set", [1, 2]]}},
            {"op": "mutate", "table": "T", "where": [["name", "==", "a"], ["set", "includes", 1]],
             "mutations": [["set", "insert", 3]]},
            {"op": "mutate", "table": "T", "where": by_uuid, "mutations": [["map", "delete", "k"]]},
            {"op": "mutate", "table": "T", "where": by_uuid, "mutations": [["map", "insert", ["map", [["k", "v"]]]]]},
            {"op": "wait", "timeout": 100, "table": "T", "where": [], "columns": ["name"], "until": "!=",
             "rows": [{"name": "b"}]},
            {"op": "comment", "comment": "why"},
            {"op": "assert", "lock": "l"},
            {"op": "delete", "table": "T", "where": [["_uuid", "==", ["named-uuid", "row0"]]]},
            {"op": "select", "table": "T", "where": [], "columns": ["name", "_uuid"]},
            {"op": "mutate", "table": "T", "where": [], "mutations": []},
        ])
    );
}

#[test]
fn results_keep_the_places_of_their_operations() {
    let mut txn = Transaction::new();
    txn.delete("Missing", Where::all());
    let row = txn.insert("T", Vec::new());
    txn.comment("x").update("T", Uuid(1), Vec::new());
    for lock in [None, Some("l")] {
        let (_, encoded) = txn.encode(&schema(), lock);
        let uuid = Uuid(5);
        let mut results = vec![json!({"uuid": ["uuid", uuid.to_string()]}), Value::Null, json!({"count": 2})];
        results.splice(0..0, lock.map(|_| json!({})));
        let committed = encoded.decode(&Ok(json!(results))).unwrap();
        assert_eq!(
            committed.results,
            [OpResult::Skipped, OpResult::Inserted(uuid), OpResult::Done, OpResult::Count(2)]
        );
        assert_eq!((committed.inserted(&row), committed.count(3), committed.count(9)), (Some(uuid), 2, 0));

        // The whole breaks a rule: one result more than operations.
        results.push(json!({"error": "referential integrity violation", "details": "d"}));
        let error = encoded.decode(&Ok(json!(results))).unwrap_err();
        assert_eq!(error.to_string(), "commit: referential integrity violation: d");

        // An operation fails: those after it have null.
        let at = usize::from(lock.is_some());
        results.truncate(at);
        results.extend([json!({"error": "constraint violation"}), Value::Null, Value::Null]);
        let error = encoded.decode(&Ok(json!(results))).unwrap_err();
        assert_eq!(error.to_string(), "insert (operation 1): constraint violation");
    }
}

#[test]
fn replies_that_make_no_sense_are_errors() {
    let mut txn = Transaction::new();
    txn.insert("T", Vec::new());
    txn.update("T", Uuid(1), Vec::new());
    let (_, plain) = txn.encode(&schema(), None);
    let (_, locked) = txn.encode(&schema(), Some("l"));
    for wrong in [json!(null), json!({}), json!([]), json!([{}, {}]), json!([{"uuid": 5}, {"count": 1}])] {
        let error = plain.decode(&Ok(wrong.clone())).unwrap_err();
        assert!(matches!(error, TransactError::Reply(_)), "{wrong}: {error:?}");
    }
    let refused = plain.decode(&Err(json!({"error": "unknown database", "details": "D"}))).unwrap_err();
    assert_eq!(refused.to_string(), "request refused: unknown database: D");
    let refused = plain.decode(&Err(json!("canceled"))).unwrap_err();
    assert_eq!(refused.to_string(), "request refused: canceled");
    let not_owner = json!([{"error": "not owner", "details": "l"}, null, null]);
    assert_eq!(locked.decode(&Ok(not_owner)), Err(TransactError::NotLocked));
}

#[test]
fn an_error_fills_no_log() {
    let long = "é".repeat(1 << 20);
    for error in [json!({"error": long, "details": long, "syntax": long}), json!(long), json!([long])] {
        let told = DbError::from_json(&error).to_string();
        assert!(told.chars().count() < 2200, "{}", told.len());
    }
    let error = json!({"error": "constraint violation", "details": "x".repeat(MAX_TEXT)});
    assert_eq!(DbError::from_json(&error).details.unwrap().len(), MAX_TEXT);
}
