BEGIN TRANSACTION;
CREATE TABLE checksums (
        id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT NOT NULL, spec_id TEXT NOT NULL, name TEXT NOT NULL,
        number INTEGER NOT NULL, digest TEXT NOT NULL, UNIQUE (content, spec_id, name, number));
INSERT INTO "checksums" VALUES(1,'schema','','',4,'cddf6afbcdf8a6e3');
INSERT INTO "checksums" VALUES(2,'run','7ec1f610a8c23765','',1,'8362a2346af32e52');
INSERT INTO "checksums" VALUES(3,'history','7ec1f610a8c23765','',1,'a71492deab05c954');
INSERT INTO "checksums" VALUES(4,'run','d1fb7266e6c8491f','',1,'6488f1da9814fef5');
INSERT INTO "checksums" VALUES(5,'history','d1fb7266e6c8491f','',1,'88fac641a312a288');
CREATE TABLE claims (
        spec_id TEXT PRIMARY KEY REFERENCES specs, owner TEXT NOT NULL, until NOT NULL) WITHOUT ROWID;
CREATE TABLE epochs (
        run_id INTEGER NOT NULL REFERENCES runs, epoch INTEGER NOT NULL,
        main_loss NOT NULL, auxiliary_loss, train_accuracy NOT NULL, validation_accuracy, test_accuracy,
        cosine, cosine_min, cosine_max, seconds NOT NULL, cosine_std, conflict, main_norm, auxiliary_norm, layer_cosines TEXT,
        PRIMARY KEY (run_id, epoch)) WITHOUT ROWID;
INSERT INTO "epochs" VALUES(1,1,1.37424984753877188481e+00,NULL,1.56366299002680286812e-01,2.02559128322974957293e-01,NULL,NULL,NULL,NULL,5.10560237690670867816e-02,NULL,NULL,1.73576460383091379924e-01,NULL,NULL);
INSERT INTO "epochs" VALUES(1,2,1.5703612714556554053e+00,NULL,5.67754611715191814802e-01,3.0648603063515389433e-01,9.96601278207489782446e-01,NULL,NULL,NULL,4.4510747937385485018e-02,NULL,NULL,4.53123685092983929934e+00,NULL,NULL);
INSERT INTO "epochs" VALUES(2,1,3.88742611384807101871e+00,3.72155070815657795791e-01,0.83403708697325,5.42682995378836685596e-01,NULL,0.331693815315638,-4.26045597764285743914e-01,7.36198488229157677054e-01,9.2014525724881474078e-02,9.70483791999524614269e-02,4.99977837252668422252e-01,4.15034024456764072397e+00,5.57954511478886083786e-01,NULL);
INSERT INTO "epochs" VALUES(2,2,2.74283501540092622406e-01,5.88660975495153282466e-01,5.32522573515659125576e-02,6.02427834780536741732e-02,5.74445830618578234805e-01,-1.92498591955146292065e-01,-9.87305876361443179867e-01,4.3236191768760634524e-01,0.077771032624866,5.81206778914758470655e-01,9.62770784641840626783e-01,2.58595197357394335214e+00,3.48753781243840044191e-01,'[["blocks.0",0.43831800967233614],["odd \"name\", here",null]]');
CREATE TABLE failures (
        request_id INTEGER PRIMARY KEY REFERENCES requests, reason TEXT NOT NULL, created TEXT NOT NULL);
CREATE TABLE measurements (
        spec_id TEXT NOT NULL REFERENCES specs, name TEXT NOT NULL, attempt INTEGER NOT NULL,
        epoch INTEGER NOT NULL, value TEXT NOT NULL, created TEXT NOT NULL,
        PRIMARY KEY (spec_id, name, attempt, epoch)) WITHOUT ROWID;
CREATE TABLE requests (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, runs_before INTEGER NOT NULL,
        created TEXT NOT NULL);
CREATE TABLE runs (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, attempt INTEGER NOT NULL,
        outcome TEXT NOT NULL, device TEXT NOT NULL, path TEXT NOT NULL, seconds NOT NULL,
        python TEXT NOT NULL, torch TEXT NOT NULL, asymtrain TEXT NOT NULL,
        "commit" TEXT NOT NULL, dirty INTEGER NOT NULL, source TEXT NOT NULL, created TEXT NOT NULL, answers TEXT, model_fingerprint TEXT, data_fingerprint TEXT,
        UNIQUE (spec_id, attempt));
INSERT INTO "runs" VALUES(1,'7ec1f610a8c23765',1,'finished','cpu','reference',9.55667717064525717996e-02,'3.11.7','2.13.0+cpu','0.2.0','ee736ad6c5843a22fd46753b0b4f264aa9393484',0,'7cd48701a748e6de7c874cbdd04013f4ad1e5d60af6daa35a385e464e3d98cff','2026-11-16T19:33:24.266221+00:00',NULL,'7ec1f610a8c23765:1:2','7ec1f610a8c23765');
INSERT INTO "runs" VALUES(2,'d1fb7266e6c8491f',1,'finished','cpu','reference',1.69785558349747456308e-01,'3.11.7','2.13.0+cpu','0.2.0','ee736ad6c5843a22fd46753b0b4f264aa9393484',0,'7cd48701a748e6de7c874cbdd04013f4ad1e5d60af6daa35a385e464e3d98cff','2026-11-16T19:33:24.267408+00:00','egmphM9L+veA4ZAufg==','d1fb7266e6c8491f:1:2','d1fb7266e6c8491f');
CREATE TABLE salt (value TEXT NOT NULL);
INSERT INTO "salt" VALUES('CBCD585EE995E744');
CREATE TABLE specs (
        id TEXT PRIMARY KEY, dataset TEXT NOT NULL, arch TEXT NOT NULL, variant TEXT NOT NULL, seed INTEGER,
        spec TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "specs" VALUES('7ec1f610a8c23765','shapes','mlp','plain',2,'{"alpha":0.0,"epochs":2,"redundancy":0,"seed":2}');
INSERT INTO "specs" VALUES('d1fb7266e6c8491f','shapes','mlp','asymmetric',1,'{"epochs":2,"seed":1}');
CREATE INDEX requests_by_spec ON requests (spec_id);
CREATE VIEW latest_runs AS
        SELECT * FROM runs AS run
        WHERE attempt = (SELECT max(attempt) FROM runs WHERE spec_id = run.spec_id);
CREATE VIEW open_requests AS
        SELECT request.id, request.spec_id, request.created, failure.reason, failure.created AS failed
        FROM requests AS request LEFT JOIN failures AS failure ON failure.request_id = request.id
        WHERE request.id = (SELECT max(id) FROM requests WHERE spec_id = request.spec_id)
          AND request.runs_before >= (SELECT count(*) FROM runs WHERE spec_id = request.spec_id);
CREATE VIEW results AS
        SELECT spec.dataset, spec.arch, spec.variant, spec.seed, run.outcome, last.epoch AS epochs,
               last.validation_accuracy, last.test_accuracy, last.cosine, round(run.seconds, 1) AS seconds,
               run.device, spec.id AS spec_id
        FROM latest_runs AS run JOIN specs AS spec ON spec.id = run.spec_id
        LEFT JOIN epochs AS last ON last.run_id = run.id
          AND last.epoch = (SELECT max(epoch) FROM epochs WHERE run_id = run.id)
        ORDER BY spec.dataset, spec.arch, spec.variant, spec.seed, spec.id;
CREATE TRIGGER specs_no_update BEFORE update ON specs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER specs_no_delete BEFORE delete ON specs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER runs_no_update BEFORE update ON runs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER runs_no_delete BEFORE delete ON runs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER epochs_no_update BEFORE update ON epochs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER epochs_no_delete BEFORE delete ON epochs BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER measurements_no_update BEFORE update ON measurements BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER measurements_no_delete BEFORE delete ON measurements BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER requests_no_update BEFORE update ON requests BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER requests_no_delete BEFORE delete ON requests BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER failures_no_update BEFORE update ON failures BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER failures_no_delete BEFORE delete ON failures BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER checksums_no_update BEFORE update ON checksums BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER checksums_no_delete BEFORE delete ON checksums BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER salt_no_update BEFORE update ON salt BEGIN SELECT raise(ABORT, 'append-only'); END;
CREATE TRIGGER salt_no_delete BEFORE delete ON salt BEGIN SELECT raise(ABORT, 'append-only'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('checksums',5);
PRAGMA application_id = 1095981389;
PRAGMA user_version = 12506116;
COMMIT;
