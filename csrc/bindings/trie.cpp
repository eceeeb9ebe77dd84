#include "tree/trie.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "platform/check.h"
#include "tree/prefix_tree.h"

namespace py = pybind11;

namespace regrow {
namespace {

// Outputs are NumPy arrays because NumPy asks for huge pages: page faults cost more than the writes otherwise.
using Tokens = py::array_t<int64_t, py::array::c_style>;

std::span<const int64_t> view(const Tokens& array) { return {array.data(), static_cast<size_t>(array.size())}; }

Tokens to_array(const std::vector<int64_t>& values) { return Tokens(values.size(), values.data()); }

// The fields of a PrefixTree by name. Sequence s is the first lengths[s] tokens on the path to preorder node last[s].
py::dict describe(const Preorder& order, const std::vector<int64_t>& last, const std::vector<int64_t>& lengths) {
  const int64_t num_tokens = order.num_tokens();
  Tokens cu_seqlens(last.size() + 1);
  cu_seqlens.mutable_at(0) = 0;
  std::partial_sum(lengths.begin(), lengths.end(), cu_seqlens.mutable_data() + 1);
  Tokens gather_index(cu_seqlens.at(last.size())), position_ids(num_tokens), parent_index(num_tokens);
  py::array_t<int32_t> subtree_end(num_tokens);
  {
    int64_t* gather = gather_index.mutable_data();
    const int64_t* start = cu_seqlens.data();
    auto* end = subtree_end.mutable_data();
    auto *position = position_ids.mutable_data(), *parent = parent_index.mutable_data();
    py::gil_scoped_release release;
    fill_token_arrays(order, end, position, parent);
    for (size_t s = 0; s < last.size(); ++s) fill_path(order, last[s], lengths[s], gather + start[s]);
  }
  using namespace py::literals;
  return py::dict("parent"_a = to_array(order.parent), "node_start"_a = to_array(order.node_start),
                  "subtree_end"_a = subtree_end, "position_ids"_a = position_ids, "parent_index"_a = parent_index,
                  "gather_index"_a = gather_index, "cu_seqlens"_a = cu_seqlens);
}

py::dict tree_from_sequences(const Tokens& tokens, const Tokens& cu_seqlens) {
  std::vector<int64_t> last(std::max<int64_t>(cu_seqlens.size() - 1, 0)), lengths(last.size());
  const auto all_tokens = view(tokens), starts = view(cu_seqlens);
  const auto [trie, order] = [&] {
    py::gil_scoped_release release;
    Trie trie(all_tokens, starts);
    std::vector<int64_t> parent(trie.num_nodes()), node_lengths(trie.num_nodes());
    for (int64_t node = 0; node < trie.num_nodes(); ++node) {
      parent[node] = trie.parent(node);
      node_lengths[node] = trie.length(node);
    }
    Preorder order = number_preorder(parent, node_lengths);
    for (size_t s = 0; s < last.size(); ++s) {
      last[s] = order.node_of_input[trie.last_node(s)];
      lengths[s] = starts[s + 1] - starts[s];
    }
    return std::pair(std::move(trie), std::move(order));
  }();
  Tokens packed(order.num_tokens());
  int64_t* destination = packed.mutable_data();
  for (int64_t node = 0; node < order.num_nodes(); ++node) {
    const auto source = trie.tokens(order.input_of_node[node]);
    std::copy(source.begin(), source.end(), destination + order.node_start[node]);
  }
  py::dict fields = describe(order, last, lengths);
  fields["tokens"] = packed;
  return fields;
}

py::dict tree_from_nodes(const Tokens& parent, const Tokens& lengths, const std::optional<Tokens>& tokens) {
  const Preorder order = number_preorder(view(parent), view(lengths));
  const std::vector<int64_t> last = leaves_in_input_order(order);
  std::vector<int64_t> sequence_lengths(last.size());
  std::transform(last.begin(), last.end(), sequence_lengths.begin(),
                 [&](int64_t node) { return order.end_depth(node); });

  py::object packed = py::none();
  if (tokens) {
    CHECK(tokens->size() == order.num_tokens(), "tokens has ", tokens->size(),
          " entries, the nodes' lengths add up to ", order.num_tokens(),
          ": give every node's tokens, in the order of the nodes");
    const auto bad = std::ranges::find_if(view(*tokens), [](int64_t token) { return token < 0; });
    CHECK(bad == view(*tokens).end(), "tokens[", bad - view(*tokens).begin(), "] is the negative token ", *bad,
          ": cut padding and label masks off first");
    Tokens renumbered(order.num_tokens());
    const int64_t* source = tokens->data();
    for (const int64_t node : order.node_of_input) {
      const int64_t begin = order.node_start[node], length = order.node_start[node + 1] - begin;
      std::copy_n(source, length, renumbered.mutable_data() + begin);
      source += length;
    }
    packed = renumbered;
  }
  py::dict fields = describe(order, last, sequence_lengths);
  fields["tokens"] = packed;
  fields["node_of_input"] = to_array(order.node_of_input);
  return fields;
}

// What Python would take for an integer though it is none: booleans, masked elements, arrays of one element.
class Disguises {
 public:
  bool operator()(py::handle item) const {
    if (PyBool_Check(item.ptr())) return true;
    if (is_a(item, tensor_))
      return py::object(item.attr("dtype")).is(bool_dtype_) || item.attr("ndim").cast<int>() != 0;
    return is_a(item, masked_);
  }

 private:
  // Not isinstance, which calls Python for either type.
  static bool is_a(py::handle item, const py::object& type) {
    return PyType_IsSubtype(Py_TYPE(item.ptr()), reinterpret_cast<PyTypeObject*>(type.ptr()));
  }

  const py::object tensor_ = py::module_::import("torch").attr("Tensor");
  const py::object bool_dtype_ = py::module_::import("torch").attr("bool");
  const py::object masked_ = py::module_::import("numpy.ma").attr("MaskedArray");
};

// For messages: shortened, and the type's name where repr fails (that of an integer of 5,000 digits does).
std::string short_repr(py::handle item) {
  try {
    return py::module_::import("reprlib").attr("repr")(item).cast<std::string>();
  } catch (const py::error_already_set&) {
    return message("a value of type ", Py_TYPE(item.ptr())->tp_name);
  }
}

// Runs Python code (__index__, __repr__) unless the item is an int: whatever the caller borrows may change.
int64_t to_token(const py::object& item, const Disguises& disguised, size_t sequence, Py_ssize_t position) {
  int64_t token = -1;
  if (PyLong_CheckExact(item.ptr())) {
    token = PyLong_AsLongLong(item.ptr());
  } else if (PyIndex_Check(item.ptr()) && !disguised(item)) {  // NumPy integers
    const auto integer = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
    if (integer) token = PyLong_AsLongLong(integer.ptr());
  } else {
    PyErr_SetNone(PyExc_TypeError);
  }
  if (token == -1 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();  // KeyboardInterrupt, say
    PyErr_Clear();
    CHECK(false, "sequence ", sequence, " has ", short_repr(item), " at position ", position,
          ", which is no 64-bit integer: give token ids as integers, in one flat list per sequence");
  }
  return token;
}

// Lists (or tuples) of Python integers, end to end -> tokens, cu_seqlens.
py::tuple concatenate_lists(const py::list& list) {
  const py::tuple sequences(list);  // holds them while items run Python code
  Tokens cu_seqlens(sequences.size() + 1);
  int64_t* starts = cu_seqlens.mutable_data();
  starts[0] = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    PyObject* sequence = PyTuple_GET_ITEM(sequences.ptr(), s);
    CHECK(PyList_Check(sequence) || PyTuple_Check(sequence), "sequence ", s, " is a ", Py_TYPE(sequence)->tp_name,
          ", not a list or a tuple");
    starts[s + 1] = starts[s] + PySequence_Fast_GET_SIZE(sequence);
  }
  Tokens tokens(starts[sequences.size()]);
  int64_t* destination = tokens.mutable_data();
  const Disguises disguised;
  for (size_t s = 0; s < sequences.size(); ++s) {
    PyObject* sequence = PyTuple_GET_ITEM(sequences.ptr(), s);
    const Py_ssize_t length = starts[s + 1] - starts[s];
    for (Py_ssize_t i = 0; i < length; ++i) {
      CHECK(PySequence_Fast_GET_SIZE(sequence) == length, "sequence ", s, " changed during iteration, from ", length,
            " tokens to ", PySequence_Fast_GET_SIZE(sequence), ": leave it alone until the tree is built");
      const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence, i));
      *destination++ = to_token(item, disguised, s, i);
    }
  }
  return py::make_tuple(tokens, cu_seqlens);
}

}  // namespace

void bind_trie(py::module_& m) {
  m.def("tree_from_sequences", &tree_from_sequences, py::arg("tokens").noconvert(), py::arg("cu_seqlens").noconvert());
  m.def("tree_from_nodes", &tree_from_nodes, py::arg("parent").noconvert(), py::arg("lengths").noconvert(),
        py::arg("tokens").noconvert().none(true));
  m.def("concatenate_lists", &concatenate_lists, py::arg("sequences"));
}

}  // namespace regrow
