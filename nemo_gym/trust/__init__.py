"""The trust report of a verifier: how often it is wrong, with intervals, and how it can be cheated. No model is
called.

`answers` reads what a right answer consists of, `probes` and `wrong_answers` make responses from it, `exploits`
searches for responses that need no right answer, `properties` plays sessions in other orders, `judge_probes` plays the
judge, `mutation` changes the verifier's own code. `check` runs them, `report` says what was found, `baseline` compares
it with the recorded rates."""
