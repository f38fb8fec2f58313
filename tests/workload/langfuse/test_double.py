"""The server of these tests is held to Langfuse's OpenAPI document: here that the check itself bites."""

ANSWER = {"data": [], "meta": {}}


def test_parameters_that_langfuse_does_not_know_are_found(contract):
    path = "/api/public/v2/observations"
    assert list(contract.wrong_parameters(path, [("limit", "1000"), ("environment", "a"), ("environment", "b")])) == []
    assert list(contract.wrong_parameters(path, [("page", "1")])) == [f"{path} has no parameter page"]
    assert list(contract.wrong_parameters("/api/public/observations", [("fromStartTime", "yesterday")])) != []


def test_answers_of_another_shape_are_found(contract, make_call):
    path = "/api/public/v2/observations"
    assert list(contract.wrong_answer(path, ANSWER)) == []
    assert list(contract.wrong_answer(path, {"data": []})) != []
    row = dict.fromkeys(("modelId", "inputPrice", "outputPrice", "totalPrice")) | make_call(1, {"input": 1})
    assert list(contract.wrong_answer(path, ANSWER | {"data": [row]})) == []
    assert list(contract.wrong_answer(path, ANSWER | {"data": [row | {"usageDetails": {"input": "1"}}]})) != []
    assert list(contract.wrong_answer(path, ANSWER | {"data": [row | {"startTime": "soon"}]})) != []
