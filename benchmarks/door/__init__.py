"""How wide the door is: what share of models that ONNX Runtime runs bricolage serves, and what becomes of odd ones.

`pairs` tries every operator at every element type of its inputs, `models` cases of a folder; trained networks are those of
`benchmarks.real`. What is tried runs in processes of its own (`processes`): one that dies costs its own row.
"""
