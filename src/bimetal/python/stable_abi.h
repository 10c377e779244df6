#pragma once
// Functions of Python, as its documentation has them under "Stable ABI". Macros and structs are not
// used, so that no header of Python's is needed.

#include <cstddef>

struct _object;
using PyObject = struct _object;

extern "C" {
using Py_ssize_t = std::ptrdiff_t;
using PyCapsule_Destructor = void (*)(PyObject*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
int Py_IsInitialized();
int PyGILState_Ensure();
void PyGILState_Release(int);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
PyObject* PyImport_ImportModule(const char*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyObject_Str(PyObject*);
PyObject* PyObject_Type(PyObject*);
int PyObject_IsTrue(PyObject*);
int PyObject_IsInstance(PyObject*, PyObject*);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
PyObject* PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject*);
PyObject* PyBool_FromLong(long);
PyObject* PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
PyObject* PySequence_Tuple(PyObject*);
PyObject* PyTuple_New(Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
PyObject* PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject*, Py_ssize_t, PyObject*);
PyObject* PyDict_New();
PyObject* PyDict_Items(PyObject*);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, PyCapsule_Destructor);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyErr_Occurred();
void PyErr_Clear();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
void PyErr_SetObject(PyObject*, PyObject*);
void PyErr_SetString(PyObject*, const char*);
int PyErr_GivenExceptionMatches(PyObject*, PyObject*);
int PyException_SetTraceback(PyObject*, PyObject*);
extern PyObject* PyExc_Exception;
extern PyObject* PyExc_MemoryError;
extern PyObject* PyExc_RuntimeError;
extern PyObject* PyExc_TypeError;
extern PyObject _Py_NoneStruct;
}
